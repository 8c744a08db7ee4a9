"""Invariance: vectors do not depend on batch, order, padding or company; and what the four parts
refuse.
"""

import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import promptcli as pc
from promptcli.backbones.states import Needs
from promptcli.encoder import encoder as engine
from promptcli.encoder.batching import (
    check_not_forked,
    make_batch,
    map_in_threads,
    padded_length,
    plan_batches,
    token_budget,
)
from promptcli.encoder.components import BuildContext
from promptcli.encoder.encoder import TorchEncoder, build_encoder, encode_together
from promptcli.encoder.pooling import WEIGHTS, initial_weights
from promptcli.encoder.pooling.tfidf import TENSOR, fit_idf
from promptcli.encoder.transforms import TRANSFORMS
from promptcli.encoder.transforms.flow import Glow
from promptcli.encoder.transforms.heads import start_projection
from promptcli.encoder.transforms.principal_axes import (
    AllButTheTop,
    Spectral,
)
from promptcli.errors import OutOfMemoryError, PromptcliError, WrongKindError
from promptcli.grammar import parse_pooling, parse_transform
from promptcli.recipe import MASKED_RECIPES, RECIPES, LeadingTexts, Recipe
from tests.comparing import gap, refusal, refused
from tests.random_encoders import random_encoder
from tests.tiny import SENTENCES

_TEMPLATE = 'This sentence : "[X]" means [MASK] .'


@pytest.fixture(scope="module")
def bert(tiny_backbone):
    return tiny_backbone("bert")


@pytest.fixture(scope="module")
def tensors(bert):
    """Fitted numbers for every recipe that needs some."""
    rows = build_encoder(Recipe(), backbone=bert).inputs(SENTENCES).ids
    torch.manual_seed(3)
    vectors = torch.randn(60, bert.width).numpy()
    return {
        **AllButTheTop.fit(vectors),
        **Spectral.fit(vectors),
        TENSOR: fit_idf(rows, len(bert.word_embeddings)),
        "whitening.mean": torch.randn(bert.width),
        "whitening.matrix": torch.randn(bert.width, bert.width),
        **Glow(bert.width).named_tensors(),
    }


def every_recipe(head="2-3", k=5):
    """All named recipes of masked models, made fit for a tiny backbone."""
    made = {}
    for name, recipe in MASKED_RECIPES.items():
        pooling = recipe.pooling.replace("ditto", f"ditto:{head}")
        transforms = tuple(spec.replace("200", str(k)) for spec in recipe.transforms)
        made[name] = recipe.replace(pooling=pooling, transforms=transforms, prompt=recipe.prompt)
    return made


@pytest.mark.parametrize("name", MASKED_RECIPES)
@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "modernbert", "mpnet"])
def test_batch_order_and_padding_do_not_matter(name, family, tiny_backbone, monkeypatch, tensors):
    backbone = tiny_backbone(family)
    tensors = {**tensors, TENSOR: torch.rand(len(backbone.word_embeddings))}
    encoder = build_encoder(every_recipe()[name], backbone=backbone, tensors=tensors)
    sentences = [*SENTENCES, "", "the the the", " ".join(SENTENCES[:4])]
    together = encoder.encode(sentences)
    alone = np.concatenate([encoder.encode([sentence]) for sentence in sentences[::2]])
    order = np.random.default_rng(0).permutation(len(sentences))
    shuffled = encoder.encode([sentences[row] for row in order])
    plans = []

    def of_one_batch(lengths, budget, **_):
        plans.append(list(plan_batches(lengths, 10_000_000)))
        return plans[-1]

    monkeypatch.setattr("promptcli.encoder.encoder.plan_batches", of_one_batch)
    one_batch = encoder.encode(sentences)
    assert all(len(plan) == 1 for plan in plans)
    scale = max(1.0, np.abs(together).max())
    assert gap(together[::2], alone) < 1e-5 * scale
    assert gap(together[order], shuffled) < 1e-5 * scale
    assert gap(together, one_batch) < 1e-5 * scale


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "mpnet"])
def test_one_slot_of_the_last_layer_equals_the_whole(family, tiny_backbone):
    backbone = tiny_backbone(family)
    recipes = [
        Recipe(prompt=_TEMPLATE, pooling=pooling)
        for pooling in ("last/mask", "layer-2/mask", "last/avg")
    ]
    slot, whole, average = (build_encoder(recipe, backbone=backbone) for recipe in recipes)
    seen = []
    hook = backbone.model.encoder.layer[-1].register_forward_hook(
        lambda *given: seen.append(given[2].size(1))
    )
    fast = slot.encode(SENTENCES)
    hook.remove()
    assert set(seen) == {1}  # truly one position
    assert gap(fast, encode_together([whole, average], SENTENCES)[0].vectors) < 1e-5


def test_encode_together_equals_each_alone_and_shares_the_pass(bert, tensors):
    encoders = [
        build_encoder(recipe, backbone=bert, tensors=tensors) for recipe in every_recipe().values()
    ]
    sentences = SENTENCES + SENTENCES[:3]
    calls, done = [], []
    hook = bert.model.register_forward_hook(lambda *_: calls.append(1))
    together = encode_together(encoders, sentences, progress=done.append)
    shared = len(calls)
    alone = [encoder.encode_report(sentences) for encoder in encoders]
    hook.remove()
    assert shared < (len(calls) - shared) / 2
    assert sum(done) == len(sentences)
    for one, other in zip(together, alone, strict=True):
        scale = max(1.0, np.abs(other.vectors).max())
        assert gap(one.vectors, other.vectors) < 1e-5 * scale
        assert one.vectors.dtype == np.float32 and one.vectors.shape == (
            len(sentences),
            encoders[0].width,
        )
        assert np.array_equal(one.vectors[:3], one.vectors[len(SENTENCES) :])


def test_no_attention_matrix_is_made(bert, monkeypatch):
    """Ditto under fused attention: nothing calls softmax on a (t, t) matrix."""
    shapes = []
    original = torch.softmax
    monkeypatch.setattr(
        torch, "softmax", lambda *a, **k: shapes.append(a[0].shape) or original(*a, **k)
    )
    monkeypatch.setattr(
        torch.Tensor, "softmax", lambda *a, **k: shapes.append(a[0].shape) or original(*a, **k)
    )
    build_encoder(Recipe(pooling="last/ditto:1-1"), backbone=bert).encode(SENTENCES)
    assert not shapes


def test_unbiased_keeps_what_the_switches_leave(bert):
    text = "The CAT sat, on the mat: unhappy!"
    left = {}
    for switch in ("freq", "sub", "case", "pun"):
        encoder = build_encoder(Recipe(pooling=f"static/unbiased:{switch}"), backbone=bert)
        left[switch] = [bert.tokenizer.text(token) for token in encoder.inputs([text]).ids[0][1:-1]]
    assert (
        "the" not in left["freq"]
        and "," not in left["freq"]
        and any("##" in word for word in left["freq"])
    )
    assert "!" in left["sub"] and not any("##" in word for word in left["sub"])
    assert "!" not in left["pun"] and "sat" in left["pun"]
    encoder = build_encoder(Recipe(pooling="static/unbiased"), backbone=bert)
    # an emptied sentence is [PAD]
    assert encoder.inputs(["the, the"]).ids[0][1:-1] == [bert.tokenizer.pad]


def test_unbiased_on_byte_level_vocabularies_keeps_the_stray_blank(tiny_backbone):
    roberta = tiny_backbone("roberta")
    rows = (
        build_encoder(Recipe(pooling="static/unbiased"), backbone=roberta)
        .inputs(["the dog, barks the"])
        .ids
    )
    texts = [roberta.tokenizer.text(token) for token in rows[0][1:-1]]
    assert texts[-1] == "Ġ" and not {"Ġthe", "the", ",", "Ġdog"} & set(texts)


@settings(max_examples=60)
@given(lengths=st.lists(st.integers(2, 90), min_size=1, max_size=200), budget=st.integers(1, 400))
def test_batches_hold_every_row_once_and_keep_the_budget(lengths, budget):
    lengths = np.array(lengths)
    batches = list(plan_batches(lengths, budget))
    assert sorted(int(row) for batch in batches for row in np.unique(batch)) == list(
        range(len(lengths))
    )
    # only the last is ever filled up
    assert all(len(np.unique(batch)) == len(batch) for batch in batches[:-1])
    for batch in batches:
        assert len(batch) == 1 or len(batch) * padded_length(lengths[batch].max()) <= budget
    maxima = [lengths[batch].max() for batch in batches]
    assert maxima == sorted(maxima, reverse=True)


def test_a_file_of_many_windows_has_few_shapes():
    """Peak memory grows with the number of distinct shapes: the first windows of a text bring
    nearly all of them.
    """
    generator = np.random.default_rng(0)
    shapes = set()
    for window in range(12):
        lengths = np.clip(generator.gamma(4, 8, 16_384).astype(int) + 3, 3, 128)
        mine = {
            (len(batch), padded_length(lengths[batch].max())) for batch in plan_batches(lengths)
        }
        assert window < 3 or len(mine - shapes) <= 2
        shapes |= mine
    assert len(shapes) < 70


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sentences=st.lists(st.text(max_size=30), min_size=1, max_size=6))
def test_any_text_encodes_to_finite_rows(sentences, bert):
    vectors = build_encoder(Recipe(prompt=_TEMPLATE, pooling="last/mask"), backbone=bert).encode(
        sentences
    )
    assert vectors.shape == (len(sentences), bert.width) and np.isfinite(vectors).all()


@pytest.mark.parametrize("family", ["bert", "roberta", "albert"])
def test_the_kth_mask_of_a_template_is_read(family, tiny_backbone):
    backbone = tiny_backbone(family)
    text = "[MASK] and [MASK] : [X] , [MASK] ."
    poolings = ["last/mask", "last/mask:1", "last/mask:2", "last/mask:3"]
    encoders = [
        TorchEncoder(Recipe(prompt=text, pooling=pooling), backbone, {}) for pooling in poolings
    ]
    first = encoders[0]
    assert [encoder.recipe.pooling for encoder in encoders] == [
        poolings[0],
        *[poolings[0], *poolings[2:]],
    ]
    together = [encoded.vectors for encoded in encode_together(encoders, SENTENCES)]
    for row, ids in enumerate(first.inputs(SENTENCES).ids):
        batch = make_batch(
            [ids], first.template.mask_positions(np.array([len(ids)])), 0, backbone.device, 66
        )
        with torch.inference_mode():
            states = backbone.run(batch, Needs(frozenset({backbone.n_layers}))).layers[
                backbone.n_layers
            ][0]
        masks = [place for place, token in enumerate(ids) if token == backbone.tokenizer.mask]
        assert len(masks) == 3
        for encoder, vectors, place in zip(encoders, together, [masks[0], *masks], strict=True):
            np.testing.assert_allclose(vectors[row], states[place].numpy(), atol=2e-5)
            np.testing.assert_allclose(
                encoder.encode([SENTENCES[row]])[0], states[place].numpy(), atol=2e-5
            )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": "no slot here"}, r"has no \[X\]"),
        ({"prompt": "nosuchname"}, "unknown template 'nosuchname'; valid: manual"),
        ({"pooling": "last/mask"}, r"has no \[MASK\]"),
        (
            {"pooling": "last/mask:3", "prompt": "[MASK] [X] [MASK]"},
            "has only 2; give mask:1 to mask:2",
        ),
        ({"pooling": "last"}, "not STATES/WEIGHTS"),
        (
            {"pooling": "first/avg"},
            "unknown states of pooling 'first'; valid: static, mlm-head, last, .* layer",
        ),
        (
            {"pooling": "last/mean"},
            "unknown weights of pooling 'mean'; valid: avg, max, sqrt, weighted, cnn, cls",
        ),
        ({"pooling": "layer-9/avg"}, "valid: layer-0 to layer-2"),
        ({"pooling": "last/avg:3"}, "no argument is allowed for weights"),
        ({"pooling": "last/ditto"}, "no head is known for backbone"),
        ({"pooling": "last/ditto:0-1"}, "head '0-1' does not exist; .* 1-1 to 2-4"),
        ({"pooling": "last/slot-attention"}, r"reads the mask, but template '\[X\]' has no"),
        ({"pooling": "last/slot-attention:9-1"}, "head '9-1' does not exist"),
        ({"pooling": "last/slot-attention:1-1;x"}, "give slot-attention, slot-attention:LAYER"),
        ({"pooling": "static/unbiased:x"}, "unknown switch .*; valid: freq, sub, case, pun"),
        ({"pooling": "last/tfidf"}, "promptcli fit"),
        (
            {"pooling": "last/tfidf:letter"},
            "no argument is allowed for weights 'tfidf', got 'letter'",
        ),
        ({"transforms": ("pca",)}, "unknown transform 'pca'; valid: topk-tokens"),
        ({"transforms": ("topk-tokens:0",)}, "whole number"),
        ({"denoise": "always"}, "unknown denoise 'always'; valid: none, hidden"),
        ({"denoise": "hidden"}, "words around"),
        (
            {"denoise": "hidden", "prompt": "a [X]", "pooling": "last/content-avg"},
            "'content-avg' leave out; set denoise to none",
        ),
        (
            {"denoise": "hidden", "prompt": "a [X]", "pooling": "last/avg+content-max"},
            "leave out; set denoise to none",
        ),
        ({"denoise": "logits", "prompt": "[X] [MASK]"}, "needs a transform with that stage"),
        ({"max_length": 1000}, "must be 1 to 66"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(changes, message, bert):
    with refusal(message) as caught:
        build_encoder(Recipe(**changes), backbone=bert)
    assert "\n" not in str(caught.value)


def test_a_window_is_handed_over_when_the_next_one_is_being_computed(bert, monkeypatch):
    encoder = build_encoder(Recipe(), backbone=bert)
    windows = [SENTENCES[:5], SENTENCES[5:6], [], SENTENCES[3:9]]
    expected = [encoder.encode_report(window).vectors for window in windows]
    begin, events = engine.begin_fetch, []

    def beginning(tensors):
        fetch = begin(tensors)
        events.append("begun")
        return lambda: events.append("fetched") or fetch()

    monkeypatch.setattr(engine, "begin_fetch", beginning)
    for vectors, encoded in zip(expected, encoder.encode_windows(windows), strict=True):
        assert np.array_equal(encoded.vectors, vectors)
        events.append("handed over")
    assert events.count("begun") == events.count("fetched") == 4  # a batch each
    first = events.index("handed over")
    assert events[:first] == ["begun", "begun", "fetched"]


def test_the_mean_of_prompts_is_made_of_their_encoders(bert):
    recipe = Recipe(pooling="last/mask", prompt="mean:a [X] [MASK] || [X] is [MASK]")
    mean = TorchEncoder(recipe.replace(denoise="hidden"), bert, {})
    assert isinstance(mean, TorchEncoder) and isinstance(mean, pc.Encoder)
    assert [each.recipe.prompt for each in mean.prompt_encoders] == [
        "a [X] [MASK]",
        "[X] is [MASK]",
    ]
    expected = np.mean(
        [each.encode(SENTENCES) for each in mean.prompt_encoders], axis=0, dtype=np.float32
    )
    assert np.array_equal(mean.encode(SENTENCES), expected)
    with refusal("a mean of 2 prompts cannot be used here"):
        mean.one_prompt()
    with refusal("no text can be put in front"):
        mean.with_leading_text("query: ")


def test_a_text_in_front_that_is_not_counted_is_no_content_either(bert):
    leading = LeadingTexts({"query": "the cat : "}, counted=False)
    recipe = Recipe(pooling="last/content-avg+avg")
    encoder = TorchEncoder(recipe, bert, {}, leading=leading)
    of_queries = encoder.in_role("query")
    assert of_queries.recipe.pooling.startswith("last/content-avg+from:")
    content = of_queries.encode(SENTENCES)[:, : bert.width]
    written = of_queries.recipe.replace(pooling="last/content-avg")
    assert np.allclose(content, TorchEncoder(written, bert, {}).encode(SENTENCES), atol=1e-5)


def test_each_prompt_of_a_mean_is_checked_on_its_own(bert):
    recipe = Recipe(pooling="last/last-token", prompt="mean:so [X] || a [X]")
    one, other, both = (
        TorchEncoder(recipe.replace(prompt=prompt), bert, {}).encode(SENTENCES)
        for prompt in ("so [X]", "a [X]", recipe.prompt)
    )
    assert np.allclose(both, (one + other) / 2, atol=1e-5)
    with refusal("last-token", WrongKindError):
        TorchEncoder(recipe.replace(prompt="mean:so [X] || a [X] ."), bert, {})


def test_the_prompts_of_a_mean_are_not_denoised_after_a_transform(bert):
    recipe = Recipe(pooling="last/mask", prompt="mean:a [X] [MASK] || [X] is [MASK]")
    recipe = recipe.replace(denoise="logits", transforms=("topk-tokens:5",))
    with refusal(r"'logits' needs .* for a mean of prompts only denoise hidden"):
        TorchEncoder(recipe, bert, {})


def test_every_part_of_the_tables_is_walked(bert, tensors):
    """A new pooling or transform is tested by being listed: its tensors bring the same vectors
    back.
    """
    specs = [
        Recipe(prompt=_TEMPLATE, pooling=f"first-last/{name}")
        for name in WEIGHTS
        if name != "ditto"
    ]
    specs += [
        Recipe(prompt=_TEMPLATE, pooling="last/mask", transforms=(name,)) for name in TRANSFORMS
    ]
    tensors = {
        **tensors,
        **start_projection(
            "tanh",
            BuildContext(parse_transform("projection:tanh"), bert, {}),
            torch.Generator(),
        ),
    }
    tensors |= initial_weights(parse_pooling("last/cnn"), bert, torch.Generator())
    width = bert.word_embeddings.size(1)
    tensors |= {"dense.0.weight": torch.randn(3, width), "dense.0.bias": torch.randn(3)}
    arguments = {"topk-tokens": "topk-tokens:5", "dense": "dense:0:tanh", "truncate": "truncate:3"}
    for recipe in specs:
        recipe = recipe.replace(
            transforms=tuple(arguments.get(name, name) for name in recipe.transforms)
        )
        try:
            encoder = build_encoder(recipe, backbone=bert, tensors=tensors)
        except PromptcliError as error:
            # the one part that a masked-LM checkpoint lacks, and what reads causal models only
            assert "pooler" in str(error) or isinstance(error, WrongKindError)
            continue
        again = build_encoder(encoder.recipe, backbone=bert, tensors=encoder.tensors())
        assert np.array_equal(again.encode(SENTENCES), encoder.encode(SENTENCES))
        assert again.fingerprint == encoder.fingerprint
        assert Recipe.from_text(encoder.recipe.to_json()) == encoder.recipe


def test_fingerprints_tell_recipes_and_tensors_apart(bert, tensors):
    prints = {
        build_encoder(recipe, backbone=bert, tensors=tensors).fingerprint
        for recipe in every_recipe().values()
    }
    assert len(prints) == len(MASKED_RECIPES)
    moved = {**tensors, "whitening.mean": tensors["whitening.mean"] + 1}
    recipe = Recipe(transforms=("whitening",))
    first, second = (
        build_encoder(recipe, backbone=bert, tensors=given).fingerprint
        for given in (tensors, moved)
    )
    assert first != second


@pytest.mark.parametrize(
    "recipe",
    [
        MASKED_RECIPES["prompt-denoised"],
        Recipe(pooling="last/ditto:2-3"),
        Recipe(prompt="[X] [MASK]", pooling="layer-1/slot-attention;1.5"),
        Recipe(prompt="[X] [MASK]", pooling="last/avg+ditto:2-3+slot-attention:1-2"),
    ],
)
def test_batches_that_memory_does_not_hold_are_halved(recipe, tiny_backbone, monkeypatch, notes):
    backbone = tiny_backbone("bert")
    encoder = build_encoder(recipe, backbone=backbone)
    expected, whole = encoder.encode(SENTENCES), type(backbone).run

    def run(self, batch, needs):
        if batch.ids.numel() > 64:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return whole(self, batch, needs)

    monkeypatch.setattr(type(backbone), "run", run)
    got = build_encoder(encoder.recipe, backbone=backbone).encode(SENTENCES)
    assert gap(got, expected) < 1e-5
    assert notes and all(
        "memory ran out on cpu; going on with batches of" in line for line in notes
    )
    assert len(notes) < len(SENTENCES) / 2  # what was learned holds for the batches after


@pytest.mark.parametrize(
    ("method", "error", "says"),
    [
        (
            "backbones.by_name.install_fast_products",
            "CUDA out of memory. Tried to",
            "'mini-bert' does not fit into the GPU's",
        ),
        (
            "encoder.encoder.TorchEncoder.__init__",
            "CUDA out of memory.",
            "out of memory; use a smaller",
        ),
        (
            "encoder.encoder.TorchEncoder.__init__",
            "CUDA error: assert\nmore",
            "the GPU stopped: CUDA error: assert",
        ),
    ],
)
def test_trouble_of_a_device_is_one_line(method, error, says, run, monkeypatch):
    def fail(*_, **__):
        raise (torch.OutOfMemoryError if "memory" in error else RuntimeError)(error)

    monkeypatch.setattr(f"promptcli.{method}", fail)
    refused(run("similarity", "a", "b", "--device", "cpu", "-m", "mini"), 1, says)


def test_one_sentence_that_memory_does_not_hold_is_an_error(tiny_backbone, monkeypatch):
    encoder = build_encoder(MASKED_RECIPES["prompt"], backbone=tiny_backbone("bert"))

    def run(self, batch, needs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to")

    monkeypatch.setattr("promptcli.backbones.backbone.Backbone.run", run)
    what = r"with a single sentence of [\d,]+ tokens; give a smaller max_length"
    with refusal(what, OutOfMemoryError):
        encoder.encode(SENTENCES)


@pytest.mark.parametrize(
    ("free", "width", "tokens"), [(80e9, 768, 65536), (8e9, 768, 32768), (1e9, 1024, 4096)]
)
def test_the_budget_of_a_gpu_follows_its_free_memory(free, width, tokens, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (int(free), int(free)))
    assert token_budget(torch.device("cuda"), width) == tokens
    assert token_budget(torch.device("cpu"), width) == 4096


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_results_come_in_order_and_threads_are_given_back(two_threads):
    seen = []

    def work(number):
        seen.append(torch.get_num_threads())
        return number**2

    of_new_threads = []

    def encode_first():
        check_not_forked()  # what an encode begins with
        of_new_threads.append(torch.get_num_threads())

    for number, squared in enumerate(map_in_threads(work, range(9))):
        assert squared == number**2
        new = threading.Thread(target=encode_first)
        new.start()
        new.join()
    assert of_new_threads == [2] * 9
    assert set(seen) == {1} and torch.get_num_threads() == 2
    # one batch has all threads
    assert list(map_in_threads(work, [3], max_threads=8)) == [9] and seen[-1] == 2


def test_an_error_in_a_thread_ends_the_pass(two_threads):
    def work(number):
        if number == 1:
            raise ValueError("no")
        return number

    with pytest.raises(ValueError, match="no"):
        list(map_in_threads(work, range(50)))
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("denoise", ["none", "hidden"])
def test_vectors_are_those_of_one_batch_after_the_other(
    denoise, two_threads, tiny_backbone, monkeypatch
):
    encoder = random_encoder(RECIPES["prompt"].replace(denoise=denoise), tiny_backbone("bert"))
    again = TorchEncoder(encoder.recipe, encoder.backbone, encoder.tensors())
    sentences = [" ".join(["cat"] * (1 + number % 17)) + f" {number}" for number in range(300)]
    progress = []
    together = encoder.encode(sentences, progress=progress.append)
    torch.set_num_threads(1)
    assert gap(together, again.encode(sentences)) < 1e-6
    assert sum(progress) == 300 and len(progress) > 2


def test_an_encoder_without_its_cache_still_has_its_graph(bert):
    graph = engine.Graph(lambda batch: np.ones((len(batch.ids), 4), np.float32), {})
    encoder = TorchEncoder(Recipe(), bert, {}, graphs=[graph]).without_cache()
    assert encoder.graph is graph and encoder.encode("a").tolist() == [1] * 4
