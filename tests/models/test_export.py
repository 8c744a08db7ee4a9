"""Exports: the folder's own description, or the other program, gives the encoder's vectors."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModel

import promptcli as pc
from promptcli.backbones.model_folder import ModelFolder
from promptcli.encoder.encoder import build_encoder
from promptcli.encoder.sentence_encoder import TUNED
from promptcli.errors import CheckFailedError
from promptcli.models.card import write_card
from promptcli.models.entries import Entry, Registry
from promptcli.models.exporting import export_merged, export_peft, export_sentence_transformers
from promptcli.models.foreign_formats import read_model
from promptcli.models.loading import open_registry, open_torch_encoder
from promptcli.models.parity import PROBES, check_parity, lowest_cosine
from promptcli.models.sentence_transformers_format import TYPED_SPECIAL
from promptcli.recipe import RECIPES, Recipe
from tests.comparing import gap, refusal, refused
from tests.random_encoders import random_encoder, random_numbers
from tests.reference import sentence_transformers_folder
from tests.tiny import SENTENCES

TEMPLATE = 'This sentence : "[X]" means [MASK] .'
PROMPT = Recipe(prompt=TEMPLATE, pooling="last/mask")
TEXTS = [*SENTENCES, *PROBES[:6], "no end"]

#: Recipes that modules of sentence-transformers are, on BERT.
CONFIGURED = [
    Recipe(pooling="last/avg"),
    Recipe(pooling="last/cls", transforms=("projection:tanh",)),
    Recipe(pooling="first-last/avg"),
    Recipe(pooling="first-last:1/cls", transforms=("projection:tanh", "whitening:8")),
    Recipe(pooling="layer-1/avg", transforms=("whitening:8",)),
    PROMPT,
    PROMPT.replace(transforms=("projection:mlm",)),
    Recipe(
        prompt="[X] [MASK] and [MASK] !", pooling="first-last/mask:2", period=False, max_length=20
    ),
    Recipe(prompt=f"soft-template:{TEMPLATE}", pooling="last/mask"),
    PROMPT.replace(period=False, text_rule="full-stop"),
    Recipe(pooling="static/avg", transforms=("whitening:8",)),
    Recipe(prompt=TEMPLATE, pooling="static/avg"),
    Recipe(pooling="mlm-head/avg"),
]
#: And on every other kind of vocabulary, embedding and floor plan.
FAMILIES = ["roberta", "xlm-roberta", "albert", "modernbert", "distilbert", "mpnet", "deberta-v2"]


def check(recipe, backbone, folder):
    encoder = random_encoder(recipe, backbone)
    written = export_sentence_transformers(Entry("tiny", recipe), encoder, folder)
    assert "trust_remote_code" not in written.load, written.notes
    texts = TEXTS if TYPED_SPECIAL in written.notes else [*TEXTS, "it [MASK] is"]
    if any("loses the mark" in note for note in written.notes):
        texts = [
            text
            for text, cut in zip(texts, encoder.inputs(texts).truncated, strict=True)
            if not cut
        ]
    there = sentence_transformers_folder.vectors(folder, texts)
    told = there.any(axis=1)  # zeros are said in a note
    assert told.sum() > len(texts) // 2
    assert lowest_cosine(encoder.encode(texts)[told], there[told]) > 0.999999


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("model.safetensors", "last/ditto:1-1"),
        ("model.safetensors", "last/avg"),
        ("tokenizer_config.json", "last/avg"),
    ],
)
def test_what_a_link_of_the_backbone_leads_to_outside_is_not_copied(
    name, pooling, bert_folder, tmp_path
):
    folder = shutil.copytree(bert_folder, tmp_path / "bert")
    (folder / name).rename(tmp_path / "secret")
    (folder / name).symlink_to(tmp_path / "secret")
    (tmp_path / "out").mkdir()
    entry = Entry("tiny", Recipe(backbone=str(folder), pooling=pooling))
    with refusal(f"{name} is a link that leads out of the folder"):
        export_sentence_transformers(
            entry, open_torch_encoder(entry, device="cpu"), tmp_path / "out"
        )


@pytest.mark.parametrize(
    "recipe", CONFIGURED, ids=lambda recipe: f"{recipe.prompt[:14]} {recipe.pooling}"
)
def test_configuration_alone_is_the_encoder(recipe, tiny_backbone, tmp_path):
    check(recipe, tiny_backbone("bert"), tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_with_a_template_and_layers(family, tiny_backbone, tmp_path):
    check(PROMPT.replace(pooling="first-last/mask"), tiny_backbone(family), tmp_path)


@pytest.mark.parametrize("family", ["bert", *FAMILIES])
def test_the_module_asks_for_the_layers_that_the_folder_has(family, tiny_backbone, tmp_path):
    encoder = build_encoder(Recipe(pooling="last/avg"), backbone=tiny_backbone(family))
    export_sentence_transformers(Entry("tiny", encoder.recipe), encoder, tmp_path)
    given = json.loads((tmp_path / "sentence_bert_config.json").read_text()).get("model_args", {})
    _, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True, **given)
    assert (report["missing_keys"], report["unexpected_keys"]) == (set(), set())


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_causal_models_are_read_at_their_last_token(family, tiny_backbone, tmp_path):
    check(
        RECIPES["prompteol"].replace(pooling="layer--2/last-token"), tiny_backbone(family), tmp_path
    )


@pytest.mark.parametrize(
    ("recipe", "reason"),
    [
        (Recipe(pooling="first-last/ditto:1-3"), "pooling 'first-last/ditto:1-3'"),
        (PROMPT.replace(denoise="hidden"), "length of the sentence"),
        (Recipe(prompt="deep-prefix:3", pooling="last/cls"), "more than tokens"),
        (Recipe(transforms=("flow",)), "neither an affine map nor dense layers"),
        (PROMPT.replace(transforms=("topk-tokens:5",)), "neither an affine map"),
        (RECIPES["prompteol"], "of this family"),
        (
            Recipe(prompt=f"soft-template-lookup:{TEMPLATE}", pooling="last/mask"),
            "more than tokens",
        ),
    ],
    ids=["ditto", "denoised", "deep-prefix", "flow", "topk", "qwen2", "lookup"],
)
def test_the_rest_is_one_module_with_the_whole_encoder(recipe, reason, tiny_backbone, tmp_path):
    encoder = random_encoder(recipe, tiny_backbone("qwen2" if recipe.text_rule else "bert"))
    written = export_sentence_transformers(Entry("tiny", recipe), encoder, tmp_path)
    assert "trust_remote_code=True" in written.load and reason in written.notes[0]
    assert any("trust_remote_code=True" in note for note in written.notes)
    types = [module["type"] for module in json.loads((tmp_path / "modules.json").read_text())]
    assert types == ["promptcli.models.st_module.PromptcliModule"]
    again = open_torch_encoder(
        read_model(ModelFolder(str(tmp_path), tmp_path)), device="cpu", dtype="float32"
    )
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))


def test_parity_is_refused_where_it_is_not_there():
    ours = np.eye(3, dtype=np.float32)
    assert check_parity(ours, ours * 2, "x") == pytest.approx(1)
    for theirs in (ours[::-1].copy(), ours[:, :2], np.full_like(ours, np.nan)):
        with refusal("x gives other vectors", CheckFailedError):
            check_parity(ours, theirs, "x")


def test_the_command_writes_a_folder_with_a_card_and_says_what_loads_it(
    run, tmp_path, home, bert_folder
):
    recipe = Recipe(backbone=str(bert_folder), pooling="last/avg")
    Registry(home).save(Entry("mine", recipe))
    folder = tmp_path / "st"
    made = run("export", "mine", "-o", folder, "--to", "sentence-transformers", "--json")
    assert made.code == 0, made.err
    told = json.loads(made.out)
    assert told["load"] == f'SentenceTransformer("{folder}")' and told["bytes"] > 0
    about = json.loads((folder / "promptcli.json").read_text())
    assert about["recipe"]["pooling"] == "last/avg" and len(about["fingerprint"]) == 64
    assert (
        load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"].dtype
        == torch.float32
    )
    card = (folder / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["library_name"] == "sentence-transformers"
    assert str(bert_folder) not in card
    assert {path.name for path in tmp_path.iterdir()} == {"st", "home"}
    refused(
        run("export", "mine", "-o", folder, "--to", "sentence-transformers"),
        2,
        "--output: ",
        "exists",
    )


def test_a_card_holds_the_scores_as_the_hub_reads_them(tmp_path):
    recipe = Recipe(pooling="last/avg")
    own = str(tmp_path / "mine.tsv")
    scores = [
        {"task": "STS12", "split": "test", "metric": "spearman", "value": 61.0},
        {"task": "STS12", "split": "test", "metric": "spearman", "value": 62.5},
        {"task": "STS-B", "split": "dev", "metric": "spearman", "value": 70.0},
        {"task": own, "split": "test", "metric": "spearman", "value": -12.0},
        {"task": "MR", "metric": "accuracy", "value": 80.25},
        {"task": own, "split": "test", "metric": "mine", "value": 7.0},
    ]
    write_card(tmp_path, Entry("tiny", recipe, scores=scores), recipe, use="")
    card = ModelCard.load(tmp_path / "README.md")
    found = [
        (each.task_type, each.dataset_type, each.dataset_split, each.metric_type, each.metric_value)
        for each in card.data.eval_results
    ]
    similarity = "semantic-similarity"
    assert found == [
        (similarity, "mteb/sts12-sts", "test", "spearman_cosine", 0.625),
        (similarity, "mteb/stsbenchmark-sts", "dev", "spearman_cosine", 0.7),
        (similarity, "mine.tsv", "test", "spearman_cosine", -0.12),
        ("text-classification", "MR", "test", "accuracy", 0.8025),
    ]
    assert card.data.model_name == "tiny" and str(tmp_path) not in card.content
    write_card(tmp_path, Entry("tiny", recipe), recipe, use="")
    assert "model-index" not in (tmp_path / "README.md").read_text()


def test_a_card_says_which_own_pairs_chose_the_checkpoint(tmp_path):
    recipe = Recipe(pooling="last/avg")
    chosen = str(tmp_path / "chosen.tsv")
    held_out = str(tmp_path / "held-out.tsv")
    scores = [
        {"task": task, "split": "test", "metric": "spearman", "value": 50.0}
        for task in (chosen, held_out)
    ]
    provenance = {"trained": {"chosen_by": chosen}}
    write_card(tmp_path, Entry("tiny", recipe, {}, provenance, scores), recipe, use="")
    card = ModelCard.load(tmp_path / "README.md")
    assert [(each.dataset_name, each.dataset_split) for each in card.data.eval_results] == [
        ("chosen.tsv (development pairs: they chose the checkpoint)", "dev"),
        ("held-out.tsv", "test"),
    ]
    assert str(tmp_path) not in card.content


def test_the_card_of_a_trained_model_is_enough_to_train_and_to_cite_it(run, tmp_path, bert_folder):
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(SENTENCES))
    given = ("--backbone", bert_folder, "--batch-size", "4", "--epochs", "1")
    seeds = ("--seeds", "2", "--set", "temperature=0.07")
    ran = run("tune", "simcse", "--data", texts, *given, *seeds, "--name", "mine")
    assert ran.code == 0, ran.err
    entry = open_registry().load("mine")
    facts = entry.provenance["trained"]
    # whoever brings a backbone of their own does not ask for the shipped model
    assert "default" not in facts and "mini is better" not in ran.err
    write_card(tmp_path, entry, entry.recipe, use="")
    card = (tmp_path / "README.md").read_text()
    for name in ("method", "supervised", "data", "development", "source", "chosen_by", "best_step"):
        value = facts[name] if name != "source" else texts.name
        assert f"| {name.replace('_', ' ')} | `{value}` |" in card
    assert "| runs | `2` |" in card
    for setting in facts["settings"]:
        assert f"| {setting.replace('_', '-')} |" in card
    assert "| temperature | `0.07` | `0.05` |" in card
    assert f"promptcli {pc.__version__}, python" in card
    assert "| command | `" in card and str(tmp_path) not in card
    assert str(bert_folder) not in card
    [row] = [row for row in run("models", "list", "--json").json if row["name"] == "mine"]
    assert row["trained"] == "simcse"


def test_bad_input_is_one_line_and_nothing_is_written(
    run, tmp_path, home, tiny_backbone, bert_folder
):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary.txt").write_text("dear")
    folder, backbone = (
        shutil.copytree(bert_folder, tmp_path / "copy"),
        tiny_backbone("bert"),
    )
    recipe = Recipe(backbone=str(folder), prompt="deep-prefix:3", pooling="last/cls")
    Registry(home).save(
        Entry("prefix", recipe, random_numbers(recipe, backbone), vars(backbone.provenance))
    )
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor + 1e-3 for name, tensor in tensors.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    out, to = ("-o", tmp_path / "x"), ("--to", "sentence-transformers")
    refused(run("export", "last-avg", *out, "--to", "onxx"), 2, "unknown target 'onxx'")
    refused(run("export", "last-avg", *out, *to, "--int8"), 2, "--int8", "onnx")
    refused(
        run("export", "last-avg", "-o", tmp_path / "mine", *to, "--force"),
        2,
        "it holds no promptcli.json",
    )
    refused(run("export", "prefix", *out, *to), 2, "was made with other weights")
    (folder / "config.json").unlink()
    refused(run("export", "prefix", *out, *to), 3, "config.json")
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "copy", "home"}
    assert (tmp_path / "mine" / "diary.txt").read_text() == "dear"


def test_a_tuned_backbone_becomes_a_plain_checkpoint(tiny_backbone, bert_folder, tmp_path):
    recipe = Recipe(backbone=str(bert_folder), pooling="last/avg")
    with refusal("nothing to merge"):
        export_merged(
            Entry("x", recipe), build_encoder(recipe, backbone=tiny_backbone("bert")), tmp_path
        )
    weights = tiny_backbone("bert").model.state_dict()
    tuned = {f"{TUNED}{name}": tensor + 0.01 for name, tensor in weights.items()}
    encoder = build_encoder(recipe, device="cpu", dtype="float32", tensors=tuned)
    export_merged(Entry("x", recipe), encoder, tmp_path)
    again = build_encoder(recipe.replace(backbone=str(tmp_path)), device="cpu", dtype="float32")
    np.testing.assert_allclose(again.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-6)


PREFIX = Recipe(prompt="deep-prefix:3", pooling="last/cls")


def equal_to_peft(folder, encoder, body, position):
    """Compare an encoder with the states that peft computes, and with the folder read as peft's
    own.
    """
    model = PeftModel.from_pretrained(body, folder).eval()
    for sentence in SENTENCES[:4]:
        ids = torch.tensor(encoder.inputs([sentence]).ids)
        with torch.inference_mode():
            state = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[
                0, position
            ]
        np.testing.assert_allclose(state.numpy(), encoder.encode(sentence), atol=1e-5)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("owner/tiny", "abc")
    shutil.copytree(body.name_or_path, folder / "base")
    config |= {"base_model_name_or_path": "base", "revision": None}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    entry = read_model(ModelFolder(str(folder), folder))
    read = open_torch_encoder(
        replace(entry, recipe=entry.recipe.replace(pooling=encoder.pooling.spec)), dtype="float32"
    )
    np.testing.assert_allclose(read.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-6)


def test_a_deep_prefix_is_peft_s_prefix_tuning(tiny_backbone, bert_folder, tmp_path):
    encoder = random_encoder(PREFIX, tiny_backbone("bert"))
    export_peft(Entry("x", PREFIX), encoder, tmp_path, base="owner/tiny@abc")
    body = AutoModel.from_pretrained(bert_folder, add_pooling_layer=False).eval()
    equal_to_peft(tmp_path, encoder, body, 0)


@pytest.mark.parametrize(
    "family", ["bert", "mpnet", "gpt2"]
)  # GPT-2 stores its linear maps the other way round
def test_a_lora_is_peft_s_and_comes_back(family, tiny_folder, tmp_path):
    recipe = Recipe(
        backbone=str(tiny_folder(family)),
        pooling="last/last-token" if family == "gpt2" else "last/cls",
    )
    body = AutoModel.from_pretrained(tiny_folder(family))
    modules = [
        name
        for name, _ in body.named_modules()
        if name.endswith(("query", "value", "attn.q", "attn.v", "c_attn", "mlp.c_proj"))
    ]
    generator = torch.Generator().manual_seed(0)
    tensors = {f"{TUNED}lora_alpha": torch.tensor(6.0)}
    for name in modules:
        weight = body.get_submodule(name).weight
        out, width = weight.T.shape if family == "gpt2" else weight.shape
        for part, shape in (("A", (2, width)), ("B", (out, 2))):
            tensors[f"{TUNED}{name}.lora_{part}.default.weight"] = (
                torch.randn(shape, generator=generator) * 0.1
            )
    encoder = build_encoder(recipe, device="cpu", dtype="float32", tensors=tensors)
    plain = build_encoder(recipe, device="cpu", dtype="float32").encode(SENTENCES)
    assert gap(plain, encoder.encode(SENTENCES)) > 1e-3
    export_peft(Entry("x", recipe), encoder, tmp_path, base="owner/tiny@abc")
    equal_to_peft(tmp_path, encoder, body, -1 if family == "gpt2" else 0)


@pytest.mark.parametrize("family", ["albert", "distilbert", "modernbert", "mpnet"])
def test_a_prefix_that_peft_would_not_apply_is_refused(family, tiny_backbone, tmp_path):
    encoder = random_encoder(PREFIX, tiny_backbone(family))
    with refusal(f"does not reach family '{family}'.*onnx"):
        export_peft(Entry("x", PREFIX), encoder, tmp_path, base="owner/tiny")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("recipe", "base", "said"),
    [(PREFIX, None, "base=OWNER/NAME"), (RECIPES["cls"], "a/b", "no learned keys and values")],
)
def test_what_peft_cannot_hold_is_refused_with_the_reason(
    recipe, base, said, tiny_backbone, tmp_path
):
    with refusal(said):
        export_peft(
            Entry("x", recipe), random_encoder(recipe, tiny_backbone("bert")), tmp_path, base=base
        )
    assert not list(tmp_path.iterdir())
