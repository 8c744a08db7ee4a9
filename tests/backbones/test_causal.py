"""Causal backbones: every family against transformers' eager path, read at the last token.

What does not fit.
"""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, LlamaForCausalLM

from promptcli.backbones import backbone as backbone_module
from promptcli.backbones import by_name
from promptcli.backbones.by_name import load_backbone
from promptcli.backbones.tokenizer import PieceTokenizer
from promptcli.encoder.encoder import build_encoder, encode_together
from promptcli.encoder.prompts.causal import reversed_words
from promptcli.named_templates import named_templates
from promptcli.recipe import RECIPES, Recipe
from tests.comparing import gap, refusal
from tests.reference import plain
from tests.reference.causal import (
    attention_outputs,
    contrasted,
    kv_embedding,
    text_rule,
    token_prepending,
)
from tests.tiny import SENTENCES
from tests.tiny_causal import CAUSAL, byte_level, save_tiny_causal

PROMPTEOL = RECIPES["prompteol"]
TEXTS = [*SENTENCES, 'Is it "so"?', "What?", ""]
FEWER = TEXTS[2::4]


@pytest.mark.parametrize("family", CAUSAL)
def test_prompteol_equals_the_eager_path_at_the_last_token(family, tiny_backbone, plain_backbone):
    reference = plain_backbone(family)
    encoder = build_encoder(PROMPTEOL, backbone=tiny_backbone(family))
    rows = encoder.inputs(TEXTS).ids
    vectors = encoder.encode(TEXTS)
    for text, row, vector in zip(TEXTS, rows, vectors, strict=True):
        ids = reference.ids(PROMPTEOL.prompt, text_rule(text))
        assert row == ids
        states, _ = reference.states(ids)
        assert gap(vector, states[-1][-1].numpy()) < 1e-5
    order = np.random.default_rng(0).permutation(len(TEXTS))
    # other neighbours, other padding
    again = encoder.encode([TEXTS[place] for place in order], batch_size=3)
    assert gap(again, vectors[order]) < 1e-5


@pytest.mark.parametrize("family", CAUSAL)
def test_averages_layers_and_diagonals_equal_the_eager_path(family, tiny_backbone, plain_backbone):
    reference = plain_backbone(family)
    read = {
        "static/avg": lambda ids, states, _: plain.average(reference.rows()[ids]),
        "first-last/avg": lambda ids, states, _: plain.average(
            torch.stack(plain.first_last(states))
        ),
        "layer--2/last-token": lambda ids, states, _: states[-2][-1],
        "layer-1/avg": lambda ids, states, _: plain.average(states[1]),
        "last/ditto:2-3": lambda ids, states, matrices: plain.ditto(states[-1], matrices[1], 2),
    }
    encoders = {
        spec: build_encoder(Recipe(pooling=spec), backbone=tiny_backbone(family)) for spec in read
    }
    vectors = {spec: encoder.encode(SENTENCES) for spec, encoder in encoders.items()}
    for number, sentence in enumerate(SENTENCES):
        ids = reference.ids("[X]", sentence)
        states, matrices = reference.states(ids)
        for spec, formula in read.items():
            assert gap(vectors[spec][number], formula(ids, states, matrices).numpy()) < 1e-5, spec


def test_what_does_not_fit_a_kind_of_model_names_what_does(tiny_backbone):
    causal, masked = tiny_backbone("gpt2"), tiny_backbone("bert")
    for recipe, backbone, said in [
        (PROMPTEOL, masked, r"'last-token' are for causal models \(gpt2, .*recipe prompt$"),
        (RECIPES["prompt"], causal, r"causal and read at its last token; use the recipe prompteol"),
        (RECIPES["cls"], causal, r"'cls' read the first token.*use last-token"),
        (Recipe(text_rule="other"), masked, r"text rule 'other'.*prompteol"),
        (
            Recipe(pooling="layer--5/avg"),
            causal,
            r"layer-0 to layer-3, or from the end layer--1 to layer--4",
        ),
        (
            Recipe(prompt="contrastive:3:0.5:prompteol || irrelevant"),
            causal,
            r"contrastive:3 does not exist.*0 to 2",
        ),
        (
            Recipe(prompt="contrastive:prompteol || In a word, [X]"),
            causal,
            "same characters right around",
        ),
        (
            RECIPES["prompteol+tp"],
            masked,
            r"'token-prepending' is for causal models.*recipe prompt$",
        ),
        (
            Recipe(prompt="token-prepending:1-4:[X] is"),
            causal,
            r"1-4 is not allowed; give 0 <= START",
        ),
    ]:
        with refusal(said):
            build_encoder(recipe, backbone=backbone)
    for prompt in ("1:0.5:prompteol", "prompteol || contrastive:prompteol || irrelevant"):
        with refusal(r"TEMPLATE \|\| AUXILIARY"):
            Recipe(prompt=f"contrastive:{prompt}", pooling="last/last-token").resolve()


@pytest.mark.parametrize("family", CAUSAL)
def test_token_prepending_equals_the_plain_loop(family, tiny_backbone, plain_backbone):
    reference = plain_backbone(family)
    backbone = tiny_backbone(family)
    embedding = torch.randn(
        backbone.word_embeddings.size(1), generator=torch.Generator().manual_seed(0)
    )
    for start, exit_ in ((0, 2), (1, 3)):
        prompt = f"token-prepending:{start}-{exit_}:{RECIPES['pretended-cot'].prompt}"
        recipe = RECIPES["pretended-cot"].replace(prompt=prompt)
        encoders = [build_encoder(recipe.replace(pooling=f"{states}/last-token"), backbone=backbone)
                    for states in ("last", "layer--2")]  # fmt: skip
        place = encoders[0].template.placeholder
        for row, last, before in zip(
            encoders[0].inputs(TEXTS).ids,
            *(encoder.encode(TEXTS) for encoder in encoders),
            strict=True,
        ):
            # a token that is nowhere else in the input lends its row to the placeholder
            spare = next(
                token for token in range(len(backbone.word_embeddings)) if token not in row
            )
            ids = [*row[:place], spare, *row[place + 1 :]]
            states = token_prepending(reference, ids, place, start, exit_, embedding)
            assert gap(last, states[-1][-1].numpy()) < 1e-5
            assert gap(before, states[-2][-1].numpy()) < 1e-5


@pytest.mark.parametrize("family", CAUSAL)
def test_the_attention_blocks_output_equals_the_plain_loop(family, tiny_backbone, plain_backbone):
    reference = plain_backbone(family)
    recipe = RECIPES["aligned-wva"]
    pools = {
        "attention/last-token": (0, 3),
        "attention:2-3/last-token": (1, 3),
        "attention:1-2/avg": (0, 2),
    }
    encoders = {
        pool: build_encoder(recipe.replace(pooling=pool), backbone=tiny_backbone(family))
        for pool in pools
    }
    last = build_encoder(PROMPTEOL, backbone=tiny_backbone(family))
    # together with what needs the last layer, and what needs fewer layers: one pass, the same
    # vectors
    together = encode_together([*encoders.values(), last], TEXTS)
    assert gap(together[-1].vectors, last.encode(TEXTS)) < 1e-5
    for (pool, (begin, end)), joint in zip(pools.items(), together, strict=False):
        vectors = encoders[pool].encode(TEXTS)
        assert gap(vectors, joint.vectors) < 1e-5
        for text, row, vector in zip(TEXTS, encoders[pool].inputs(TEXTS).ids, vectors, strict=True):
            assert row == reference.ids(recipe.prompt, text_rule(text))
            summed = attention_outputs(reference, row)[begin:end].sum(0)
            expected = summed.mean(0) if pool.endswith("avg") else summed[-1]
            assert gap(vector, expected.numpy()) < 1e-5 * max(1, float(expected.abs().max()))


@pytest.mark.parametrize("family", CAUSAL)
def test_contrastive_prompting_equals_the_plain_loop(family, tmp_path):
    # else A - B is mere rounding
    wide = {} if family in ("gpt2", "opt", "llama", "qwen2") else {"sliding_window": 300}
    reference = plain.Plain(save_tiny_causal(family, tmp_path, **wide), causal=True)
    backbone = load_backbone(str(tmp_path), dtype=torch.float32)
    embedding = torch.randn(
        backbone.word_embeddings.size(1), generator=torch.Generator().manual_seed(0)
    )
    other = named_templates()["irrelevant"].text
    for layer, factor, norm, inner in (
        (0, 0.5, False, "prompteol"),
        (1, 2.0, True, "pretended-cot"),
        (1, 0.25, False, "token-prepending:0-2:knowledge"),
    ):
        spec = f"contrastive:{layer}:{factor}{':norm' * norm}:{inner} || irrelevant"
        encoder = build_encoder(PROMPTEOL.replace(prompt=spec), backbone=backbone)
        vectors = encoder.encode(FEWER)
        place = getattr(encoder.template, "placeholder", None)
        for text, row, vector in zip(FEWER, encoder.inputs(FEWER).ids, vectors, strict=True):
            with contrasted(reference, reference.ids(other, text_rule(text)), layer, factor, norm):
                if place is None:
                    states, _ = reference.compute(row)
                else:
                    spare = next(
                        token for token in range(len(backbone.word_embeddings)) if token not in row
                    )
                    ids = [*row[:place], spare, *row[place + 1 :]]
                    states = token_prepending(reference, ids, place, 0, 2, embedding)
            expected = states[-1][-1].numpy()
            assert gap(vector, expected) < 1e-5 * max(1, np.abs(expected).max())
        order = np.random.default_rng(0).permutation(len(FEWER))
        again = encoder.encode([FEWER[number] for number in order], batch_size=3)
        assert gap(again, vectors[order]) < 1e-5
        assert build_encoder(encoder.recipe, backbone=backbone).fingerprint == encoder.fingerprint


@pytest.mark.parametrize(
    "family", [name for name in CAUSAL if name != "llama"]
)  # its old files double the blank
def test_the_placeholder_stands_where_an_added_token_would(family, tiny_backbone, tiny_folder):
    reference = plain.Plain(tiny_folder(family), causal=True)
    reference.tokenizer.add_tokens(["<PST>"])
    added = reference.tokenizer.convert_tokens_to_ids("<PST>")
    encoder = build_encoder(RECIPES["prompteol+tp"], backbone=tiny_backbone(family))
    for text, row in zip(TEXTS, encoder.inputs(TEXTS).ids, strict=True):
        ids = reference.ids('This sentence : <PST> "[X]" means in one word:"', text_rule(text))
        assert ids.index(added) == encoder.template.placeholder
        assert [
            *row[: encoder.template.placeholder],
            added,
            *row[encoder.template.placeholder + 1 :],
        ] == ids
    assert encoder.recipe.prompt.startswith("token-prepending:1-2:This")


@pytest.mark.parametrize("family", CAUSAL)
def test_what_begins_every_input_is_computed_once(family, tiny_backbone, monkeypatch):
    backbone = tiny_backbone(family)
    computed = []
    monkeypatch.setattr(type(backbone.model), "__call__", _counting(computed))
    attention = RECIPES["knowledge"].replace(pooling="attention/last-token")
    recipes = [
        *(RECIPES[name] for name in ("knowledge", "knowledge+tp", "prompteol-icl")),
        attention,
    ]
    contrastive = PROMPTEOL.replace(prompt="contrastive:2:0.5:knowledge || irrelevant")
    auxiliary = (
        build_encoder(PROMPTEOL.replace(prompt="irrelevant"), backbone=backbone).inputs(TEXTS).ids
    )
    for recipe, others in [*((recipe, []) for recipe in recipes), (contrastive, auxiliary)]:
        encoder = build_encoder(recipe, backbone=backbone)
        rows, computed[:] = [*encoder.inputs(TEXTS).ids, *others], []
        together = encoder.encode(TEXTS)
        whole, count = sum(map(len, rows)), len(encoder.prompt.shared)
        windowed = getattr(backbone.model.config, "sliding_window", None) is not None
        assert (sum(computed) < 0.7 * whole) == (not windowed) and count > 5
        alone = np.concatenate([encoder.encode([text]) for text in FEWER])
        assert gap(together[2::4], alone) < 1e-5


def test_a_window_wider_than_the_inputs_changes_nothing(tmp_path, tiny_folder):
    narrow, wide = (
        str(tiny_folder("mistral")),
        str(save_tiny_causal("mistral", tmp_path, sliding_window=300)),
    )
    encoders = [
        build_encoder(PROMPTEOL.replace(backbone=folder), dtype="float32")
        for folder in (narrow, wide)
    ]
    reference = plain.Plain(tmp_path, causal=True)
    for text, vector in zip(TEXTS, encoders[1].encode(TEXTS), strict=True):
        states, _ = reference.states(reference.ids(PROMPTEOL.prompt, text_rule(text)))
        assert gap(vector, states[-1][-1].numpy()) < 1e-5
    # the narrow one is seen
    assert gap(encoders[0].encode(TEXTS), encoders[1].encode(TEXTS)) > 1e-2


def _counting(computed):
    def call(model, *given, **options):
        tokens = (
            options["input_ids"] if "input_ids" in options else options["inputs_embeds"][..., 0]
        )
        computed.append(tokens.numel())
        return torch.nn.Module.__call__(model, *given, **options)

    return call


def test_the_mean_of_several_prompts_is_the_mean_of_their_vectors(tiny_backbone):
    backbone = tiny_backbone("qwen2")
    names = ("prompteol", "pretended-cot", "knowledge")
    mean = RECIPES["prompteol"].replace(prompt="mean:" + " || ".join(names))
    made = build_encoder(mean, backbone=backbone)
    alone = [build_encoder(RECIPES[name], backbone=backbone) for name in names]
    expected = sum(encoder.encode(TEXTS) for encoder in alone) / 3
    assert gap(made.encode(TEXTS), expected) < 1e-6
    assert build_encoder(made.recipe, backbone=backbone).fingerprint == made.fingerprint
    whitened = {"whitening.mean": torch.randn(16), "whitening.matrix": torch.randn(16, 16)}
    after = build_encoder(
        mean.replace(transforms=("whitening",)), backbone=backbone, tensors=whitened
    )
    flat = (torch.from_numpy(expected) - whitened["whitening.mean"]) @ whitened["whitening.matrix"]
    assert gap(after.encode(TEXTS), flat.numpy()) < 1e-4
    with refusal("a mean of 3 prompts cannot be used here"):
        made.inputs(TEXTS)
    assert (
        len(build_encoder(RECIPES["metaeol"], backbone=tiny_backbone("gemma2")).prompt_encoders)
        == 8
    )


def test_the_demonstration_is_the_one_published_for_the_model(tiny_folder, tiny_backbone, tmp_path):
    published = tmp_path / "opt-350m"
    published.symlink_to(tiny_folder("opt"))
    own = build_encoder(RECIPES["prompteol-icl"].replace(backbone=str(published)))
    assert own.template.text.startswith(
        'This sentence : "A man is playing on a guitar and singing." means'
    )
    other = build_encoder(RECIPES["prompteol-icl"], backbone=tiny_backbone("gpt2"))
    assert '"Horseback-riding".This sentence : "[X]" means' in other.template.text


def test_a_folder_in_shards_keeps_its_precision_where_the_device_computes_in_it(
    tmp_path, monkeypatch
):
    model = LlamaForCausalLM.from_pretrained(save_tiny_causal("llama", tmp_path))
    (tmp_path / "model.safetensors").unlink()
    model.to(torch.float16).save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    whole = load_backbone(str(tmp_path), dtype=torch.float32)
    # no processor computes in float16 at speed
    assert load_backbone(str(tmp_path)).dtype == torch.float32
    monkeypatch.setattr(by_name, "computes", lambda dtype, device: True)
    kept = load_backbone(str(tmp_path))
    assert (kept.dtype, whole.dtype) == (torch.float16, torch.float32)
    half, full = (
        build_encoder(PROMPTEOL, backbone=backbone).encode(SENTENCES) for backbone in (kept, whole)
    )
    assert gap(half, full) < 5e-2 * np.abs(full).max()


def test_a_causal_model_that_the_hook_cannot_compute_is_refused_when_it_is_loaded(
    tiny_folder, monkeypatch
):
    monkeypatch.setattr(
        backbone_module, "hook_fault", lambda model, layers: "its own attention differs by 0.7"
    )
    with refusal(r"a causal model needs the attention of the layers.*differs by 0.7"):
        load_backbone(str(tiny_folder("qwen2")))


def test_denoising_and_top_tokens_are_the_formulas(tiny_backbone, plain_backbone):
    """h - h_hat: the template without its sentence, what follows [X] at the positions it would have
    after it.
    """
    for family in ("opt", "gemma2"):
        reference = plain_backbone(family)
        backbone = tiny_backbone(family)
        plainly = build_encoder(PROMPTEOL, backbone=backbone)
        denoised = build_encoder(PROMPTEOL.replace(denoise="hidden"), backbone=backbone).encode(
            TEXTS
        )
        mixed = build_encoder(
            PROMPTEOL.replace(transforms=("topk-tokens:5",)), backbone=backbone
        ).encode(TEXTS)
        template = plainly.template
        for text, row, own, mixture in zip(
            TEXTS, plainly.inputs(TEXTS).ids, denoised, mixed, strict=True
        ):
            count = len(row) - template.length
            places = [
                *range(len(template.left)),
                *(len(template.left) + count + k for k in range(len(template.right))),
            ]
            bias, _ = reference.states([*template.left, *template.right], places, mask=True)
            states, _ = reference.states(reference.ids(PROMPTEOL.prompt, text_rule(text)))
            assert gap(own, (states[-1][-1] - bias[-1][-1]).numpy()) < 1e-5
            expected = plain.topk(reference.logits(states[-1][-1]), reference.rows(), 5)
            assert gap(mixture, expected.detach().numpy()) < 1e-4


def test_an_empty_sentence_without_any_special_token_is_one_of_padding(tiny_backbone):
    encoder = build_encoder(Recipe(pooling="last/last-token"), backbone=tiny_backbone("gpt2"))
    assert encoder.inputs(["", "a"]).ids[0] == [encoder.backbone.tokenizer.pad]
    assert np.isfinite(encoder.encode(["", "a cat", "I"])).all()


def test_a_tokenizer_of_plain_files_is_told_by_its_configuration_what_stands_in_front(tmp_path):
    """OPT's files are GPT-2's with add_bos_token.

    Those of Llama may ask for an end, which is not added.
    """
    byte_level().save_pretrained(tmp_path / "whole")
    model = json.loads((tmp_path / "whole" / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text(
        "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"])
    )
    about = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": "</s>",
        "eos_token": "</s>",
        "unk_token": "</s>",
    }
    begun = {"add_bos_token": True}
    for asked, front in (({}, ()), (begun, (1,)), ({**begun, "add_eos_token": True}, (1,))):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**about, **asked}))
        pieces = PieceTokenizer(AutoTokenizer.from_pretrained(tmp_path), "it", causal=True)
        assert (pieces.start, pieces.end, pieces.pad) == (front, (), 1)


def test_old_gpt2_files_with_buffers_and_no_prefix_load(tmp_path, tiny_folder, tiny_backbone):
    shutil.copytree(tiny_folder("gpt2"), tmp_path, dirs_exist_ok=True)
    tensors = load_file(tmp_path / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 8, 8) for layer in range(3)}
    save_file(old, tmp_path / "model.safetensors", metadata={"format": "pt"})
    made = [
        build_encoder(PROMPTEOL, backbone=one)
        for one in (load_backbone(str(tmp_path)), tiny_backbone("gpt2"))
    ]
    assert np.array_equal(*(encoder.encode(SENTENCES) for encoder in made))


def test_a_projected_last_layer_has_a_width_of_its_own(tmp_path):
    """OPT-350M: 1,024 numbers in its layers, 512 after the last one."""
    folder = save_tiny_causal("opt", tmp_path, word_embed_proj_dim=12, do_layer_norm_before=False)
    backbone, reference = load_backbone(str(folder)), plain.Plain(folder, causal=True)
    vectors = build_encoder(PROMPTEOL, backbone=backbone).encode(SENTENCES)
    for text, vector in zip(SENTENCES, vectors, strict=True):
        last = reference.model.get_decoder()(
            torch.tensor([reference.ids(PROMPTEOL.prompt, text_rule(text))])
        )
        assert gap(vector, last.last_hidden_state[0, -1].detach().numpy()) < 1e-5
    with refusal("16 dimensions in its layers, 12 after the last one; use last or layer-K"):
        build_encoder(Recipe(), backbone=backbone)


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen2"])
@pytest.mark.parametrize(("start", "exit_", "bias"), [(1, 3, 1.0), (2, 3, -0.5)])
def test_kv_embedding_equals_the_plain_loop(
    start, exit_, bias, family, tiny_backbone, plain_backbone
):
    reference = plain_backbone(family)
    template = "[X] Compress it in one word:"
    recipe = PROMPTEOL.replace(
        prompt=f"kv:{start}-{exit_};{bias:g}:{template}", pooling="last/last-and-mean"
    )
    encoder = build_encoder(recipe, backbone=tiny_backbone(family))
    assert encoder.recipe.prompt == recipe.prompt
    vectors = encoder.encode(TEXTS)
    for ids, vector in zip(encoder.inputs(TEXTS).ids, vectors, strict=True):
        states = kv_embedding(reference, ids, start, exit_, bias)[-1]
        expected = (states[-1] + plain.average(states)) / 2
        assert gap(vector, expected.numpy()) < 1e-5
    order = np.random.default_rng(0).permutation(len(TEXTS))
    again = encoder.encode([TEXTS[place] for place in order], batch_size=3)
    assert gap(again, vectors[order]) < 1e-5


def test_kv_embedding_has_layers_of_its_own_and_refuses_others(tiny_backbone):
    causal = tiny_backbone("llama")
    encoder = build_encoder(RECIPES["kv-embedding"], backbone=causal)
    assert encoder.recipe.prompt.startswith("kv:1-2;1:[Context]: [X]")
    for prompt in ("kv:0-2;1:[X] is", "kv:2-2;1:[X] is", "kv:1-4;1:[X] is"):
        with refusal("is not allowed; give 1 <= START < EXIT <= 3"):
            build_encoder(PROMPTEOL.replace(prompt=prompt), backbone=causal)
    with refusal("'kv' is for causal models"):
        build_encoder(RECIPES["kv-embedding"], backbone=tiny_backbone("bert"))


@pytest.mark.parametrize("inner", ["prompteol", "token-prepending:1-2:knowledge"])
def test_a_reversed_prompt_takes_the_words_in_reverse_order(inner, tiny_backbone, notes):
    backbone = tiny_backbone("llama")
    recipe = PROMPTEOL.replace(prompt=inner)
    plain_vectors = build_encoder(recipe, backbone=backbone).encode(
        [reversed_words(text) for text in SENTENCES]
    )
    reversed_encoder = build_encoder(recipe.replace(prompt=f"reversed:{inner}"), backbone=backbone)
    assert gap(reversed_encoder.encode(SENTENCES), plain_vectors) < 1e-5
    both = recipe.replace(prompt=f"mean:{inner} || reversed:{inner}")
    mean = (build_encoder(recipe, backbone=backbone).encode(SENTENCES) + plain_vectors) / 2
    assert gap(build_encoder(both, backbone=backbone).encode(SENTENCES), mean) < 1e-5


def test_a_reversed_prompt_of_a_masked_model_is_said_to_be_untested(tiny_backbone, notes):
    build_encoder(Recipe(prompt="reversed:[X] [MASK]"), backbone=tiny_backbone("bert"))
    assert "prompt 'reversed' is for causal models; no paper has tried it on others" in notes.text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A cat sleeps.", "sleeps cat A."),
        ("  Is it so?  ", "so it Is?"),
        ("one two", "two one"),
        ("猫 が 寝る。", "寝る が 猫。"),
        (".", "."),
        ("", ""),
    ],
)
def test_words_are_reversed_and_the_end_mark_stays(text, expected):
    assert reversed_words(text) == expected
