"""Explanations of a hit: shares that sum to its score, pairs of states, and how they are shown."""

import io
import json
import re

import numpy as np
import pytest
import torch
from rich.console import Console

import promptcli as pc
from promptcli.backbones.states import Needs
from promptcli.cli import console
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.transforms.principal_axes import AllButTheTop
from promptcli.models.loading import open_torch_encoder
from promptcli.recipe import Recipe
from promptcli.retrieval.bm25 import EXACT_WORD_BONUS, K1, B
from promptcli.retrieval.ranking import EXPLAINERS, Explanation
from promptcli.retrieval.sentence_index import SentenceIndex
from tests.comparing import refusal
from tests.reference.shares import bm25_shares, cosine_shares

TEXTS = [
    "A fisherman mends his nets by the harbour.",
    "The nets of the engines are new.",
    "Two engines, one engine: the engine room is loud.",
    "猫在睡觉。",
    "She writes C++ and C# all day.",
    "Naïve cafés serve coffee to the fisherman.",
]


def figures(hit, name):
    return {row["word"]: row["share"] for row in hit.explain()[name].figures}


@pytest.fixture(scope="module")
def index():
    return SentenceIndex.build(TEXTS, "mini-static")


@pytest.mark.parametrize(
    "query", ["the engines", "nets nets engines", "who mends nets of the harbour?"]
)
def test_shares_by_words_are_those_of_a_plain_loop(query):
    index = SentenceIndex.build(TEXTS[:3], "mini-static")
    with index.store.reading():
        stem = index.snapshot().words.stem
    texts = [re.findall(r"\w+", text.lower()) for text in (*TEXTS[:3], query)]
    asked = texts.pop()
    for hit in index.search(query, by="words", explain=True):
        wanted = bm25_shares(texts, hit.id, asked, stem, k1=K1, b=B, as_written=EXACT_WORD_BONUS)
        assert figures(hit, "words") == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("by", ["words", "both"])
@pytest.mark.parametrize(
    "query", ["nets engines nets", "C++", "the C# day", "猫在", "naive CAFES", "engine's", "zebra"]
)
def test_shares_by_words_sum_to_the_score(index, query, by):
    for hit in index.search(query, by=by, explain=True):
        score = hit.score if by == "words" else hit.bm25
        found = figures(hit, "words")
        assert sum(found.values()) == pytest.approx(score, abs=1e-5)
        as_written = [word for word in found if word.startswith("'")]
        assert as_written == (["'C++'"] if query == "C++" and hit.id == 4 else [])


@pytest.mark.parametrize("model", ["mini-static", "mini-multi"])
def test_shares_by_meaning_are_those_of_a_plain_loop_and_sum_to_the_cosine(model):
    index = SentenceIndex.build(TEXTS, model)
    encoder = open_torch_encoder(model)
    table = encoder.averaged_matrix()

    def words_of(text):
        words = [("(prompt)", table[token].tolist()) for token in encoder.template.prefix]
        for word in text.replace(".", " .").replace(",", " ,").replace(":", " :").split():
            for token in encoder.piece_tokenizer.encode([f" {word}"])[0]:
                words.append((word, table[token].tolist()))
        return words + [("(prompt)", table[token].tolist()) for token in encoder.template.suffix]

    query = "who repairs nets near the sea"
    for hit in index.search(query, by="meaning", explain=True):
        found = figures(hit, "meaning")
        assert sum(found.values()) == pytest.approx(hit.score, abs=1e-6)
        assert set(hit.explain()) == {"meaning"}
        if hit.id in (0, 1):
            wanted = {}
            for word, share in cosine_shares(words_of(query), words_of(hit.text)).items():
                name = "the" if word == "The" else word
                wanted[name] = wanted.get(name, 0.0) + share
            found = {"the" if word == "The" else word: share for word, share in found.items()}
            assert found == pytest.approx(wanted, abs=1e-6)


def static_on(backbone, *transforms, tensors=None, pooling="static/avg"):
    recipe = Recipe(backbone=backbone.name, pooling=pooling, transforms=transforms)
    return TorchEncoder(recipe, backbone, tensors or {})


def test_a_linear_transform_is_shared_and_another_is_said(tiny_backbone, notes):
    backbone = tiny_backbone("bert")
    vectors = np.random.default_rng(0).normal(size=(200, backbone.width))
    tensors = AllButTheTop.fit(vectors)
    query = "the engines"
    encoder = static_on(backbone, "all-but-the-top:2", "normalize", tensors=tensors)
    for hit in SentenceIndex.build(TEXTS, encoder).search(query, by="meaning", explain=True):
        assert sum(figures(hit, "meaning").values()) == pytest.approx(hit.score, abs=1e-6)
        assert "(stored vector)" not in figures(hit, "meaning")
    dense = {
        "dense.0.weight": torch.eye(backbone.width),
        "dense.0.bias": torch.ones(backbone.width),
    }
    for transforms, pooling in ((("dense:0:tanh",), "static/avg"), ((), "static/max")):
        encoder = static_on(backbone, *transforms, pooling=pooling, tensors=dense)
        hits = SentenceIndex.build(TEXTS, encoder).search(query, explain=True)
        assert {name for hit in hits for name in hit.explain()} == {"words"}
        assert notes.pop().startswith(f"after {pooling}")


def test_the_difference_to_a_stored_vector_is_named(here, run):
    (here / "texts.txt").write_text("\n".join(TEXTS))
    words = ("embed", "texts.txt", "-o", "v.parquet", "-m", "mini-static", "--precision", "int8")
    assert run(*words).code == 0
    index = SentenceIndex.build(here / "v.parquet")
    hit = index.search("nets", by="meaning", k=1, explain=True)[0]
    found = figures(hit, "meaning")
    assert 1e-6 < abs(found["(stored vector)"]) < 0.01
    assert sum(found.values()) == pytest.approx(hit.score, abs=1e-6)


def test_words_of_a_hit_that_has_nothing_to_do_with_the_query_are_not_marked(index):
    marked = {True: [], False: []}
    for query in ("prices of gold", "nets", "engines", "zebra quagga"):
        for hit in index.search(query, by="meaning", explain=True):
            says = max(hit.score, *figures(hit, "meaning").values()) >= 0.05
            marked[says] += [hit.explain()["meaning"].marked]
    assert marked[False] and not any(marked[False])
    assert ["nets"] in marked[True]


@pytest.mark.parametrize("model", ["mini", "last-avg"])
def test_the_nearest_states_of_a_transformer_are_those_of_a_plain_loop(model):
    index = SentenceIndex.build(TEXTS, model)
    encoder = open_torch_encoder(index.open_encoder())
    [hit] = index.search("Fishermen mend nets", k=1, explain=True)

    def states(text):
        ids = encoder.inputs([text]).ids[0]
        last = encoder.backbone.n_layers
        hidden = encoder.backbone.run(encoder.batch([ids]), Needs(layers=frozenset({last})))
        [place] = encoder.template.pieces(len(ids))
        return ids[place], hidden.layers[last][0, place].detach().double().numpy()

    (asked, of_query), (ids, of_hit) = states("Fishermen mend nets"), states(hit.text)
    own = encoder.piece_tokenizer.encode([" nets"])[0]
    assert asked[-len(own) :] == own
    best = -1.0
    for one in of_query[-len(own) :]:
        for other, token in zip(of_hit, ids, strict=True):
            if encoder.piece_tokenizer.text(token) != ".":
                cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
                best = max(best, cosine)
    [pair] = [pair for pair in hit.explain()["meaning"].figures if pair["query"] == "nets"]
    assert pair["hit"] == "nets" and pair["cosine"] == pytest.approx(best, abs=1e-5)
    assert "an indication, no sum" in hit.explain()["meaning"].line


def test_the_part_that_is_shown_is_explained():
    text = " ".join(f"Sentence {number} is about boats." for number in range(200))
    texts = [f"{text} The zebra sleeps. {text}", "A boat."]
    index = SentenceIndex.build(texts, "mini", ids=["8", "7"], split=True)
    for hit in index.search("zebra boats", explain=True):
        assert sum(figures(hit, "words").values()) == pytest.approx(hit.bm25, abs=1e-5)


def test_rows_that_came_and_went_count(tmp_path):
    index = SentenceIndex.build(TEXTS, "mini-static", output=tmp_path / "index")
    index.compact(lexical=True)
    index.delete([1])
    index.add(["The nets are in the engine room."])
    for hit in index.search("nets engines", by="words", explain=True):
        assert hit.id != 1
        assert sum(figures(hit, "words").values()) == pytest.approx(hit.score, abs=1e-5)


def test_what_cannot_be_explained_is_refused(index, tmp_path):
    [hit] = index.search("nets", k=1)
    with refusal("explain: the search kept no explanations; search with explain=True"):
        hit.explain()
    np.save(tmp_path / "v.npy", np.eye(3, 256, dtype=np.float32))
    bare = SentenceIndex.build(tmp_path / "v.npy", "mini-static")
    with refusal("explain: the index has no texts"):
        bare.search("nets", explain=True)


def test_hits_of_lists_and_an_empty_answer(index):
    [hit] = pc.search("nets", TEXTS, k=1, model="mini-static", explain=True)
    assert set(hit.explain()) == {"meaning", "words"}
    assert index.search("zebra", by="words", explain=True) == []
    assert index.search(["nets", "zebra"], k=1, explain=True)[0][0].explain()


@pytest.fixture
def folder(here):
    (here / "notes.md").write_text("# Harbour\n\nA fisherman mends his nets.\n")
    (here / "texts.txt").write_text("\n".join(TEXTS))
    return here


def test_json_has_the_numbers_and_a_pipe_brackets(run, folder):
    words = ("search", "nets of the harbour", "notes.md", "-m", "mini-static", "--explain")
    found = run(*words, "--json").json
    shares = found["explanation"]["meaning"]
    assert sum(row["share"] for row in shares) == pytest.approx(found["score"], abs=2e-6)
    assert {"word", "share"} == set(shares[0]) and "explanation" not in run(
        *words[:-1], "--json"
    ).out
    first, meaning, by_words = run(*words).out.splitlines()
    assert first.endswith("[Harbour]: A [fisherman] mends his [nets].")
    assert meaning.startswith("        meaning 0.") and by_words.startswith("        words ")
    assert run("index", "build", "texts.txt", "-o", "i", "-m", "mini-static").code == 0
    words = ("index", "search", "i", "猫在睡觉", "-k", "1", "--explain")
    assert "[猫在睡觉]" in run(*words, "--by", "words").out
    refused = run(*words, "--format", "csv")
    assert refused.code == 2 and "csv cannot show explanations" in refused.err


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("colours", [True, False])
def test_a_terminal_marks_words(run, folder, monkeypatch, width, colours):
    terminal = Console(force_terminal=True, width=width, no_color=not colours, color_system="256")
    monkeypatch.setattr(console, "out", terminal)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = run("search", "nets of the harbour", "notes.md", "-m", "mini-static", "--explain").out
    assert ("[nets]" in out) is not colours
    assert ("\x1b[1;4mnets" in out) is colours
    plain = [Console(file=io.StringIO()).render_str(line).cell_len for line in out.splitlines()]
    assert len(plain) > 3


def test_another_package_adds_an_explanation(index, monkeypatch):
    monkeypatch.setitem(
        EXPLAINERS,
        "length",
        lambda index, query, hits, way: [Explanation(3, "3 words")] * len(hits),
    )
    [hit] = index.search("nets", k=1, explain=True)
    assert hit.explain()["length"].figures == 3 and json.dumps(hit.explain()["length"].figures)
