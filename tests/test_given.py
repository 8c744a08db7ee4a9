"""What a program passes in memory is text, in order, or refused in one line: it is never
converted.
"""

import os
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import promptcli as pc
from promptcli.data.training_data import examples_of
from promptcli.data.vectors.formats import read_vectors
from promptcli.data.vectors.precision import unit
from promptcli.encoder import batching
from tests.comparing import refusal
from tests.tiny import SENTENCES

NAN = float("nan")
#: Without an order, or iterated by something other than rows.
NO_ROWS = [
    {"a": 1, "b": 2},
    {"a", "b"},
    frozenset("ab"),
    b"ab",
    pd.DataFrame({"text": ["a", "b"]}),
    5,
    None,
]
#: With items that are not text.
NO_TEXTS = [
    ["a", NAN],
    [1, 2],
    [True],
    np.arange(4.0),
    np.eye(2),
    [b"a"],
    ["a", "half \ud800"],
    pd.Series([1.5]),
]


@pytest.fixture(scope="module")
def encoder():
    return pc.load("mini-static", device="cpu")


@pytest.fixture(scope="module")
def index(encoder):
    return pc.SentenceIndex.build(["A cat sleeps.", "The market opens."], encoder, ids=["x", "y"])


@pytest.mark.parametrize("given", [*NO_ROWS, *NO_TEXTS], ids=lambda given: type(given).__name__)
def test_what_is_not_a_list_of_texts_is_refused_everywhere(given, encoder, index):
    for take in (
        encoder.encode,
        examples_of,
        index.search,
        lambda texts: encoder.similarity(texts, "a"),
        lambda texts: pc.SentenceIndex.build(texts, encoder),
        lambda texts: pc.fit("first-last-tfidf", on=texts),
    ):
        with pytest.raises(pc.PromptcliError) as refused:
            take(given)
        assert len(str(refused.value)) < 300 and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "given", [np.array(["A cat.", "b"]), pd.Series(["A cat.", "b"]), iter(["A cat.", "b"])]
)
def test_lists_of_other_kinds_are_read_in_order(given, index):
    assert index.search(given, k=1) == index.search(["A cat.", "b"], k=1)


@pytest.mark.parametrize(
    "ids",
    [
        ["a", NAN],
        [1.5, 2.5],
        [None, "a"],
        ["half \ud800", "b"],
        [b"a", b"b"],
        [True, False],
        [1 << 63, 1],
        "ab",
    ],
)
def test_an_id_is_text_or_a_whole_number(ids, encoder, index):
    for take in (
        lambda: pc.SentenceIndex.build(["a", "b"], encoder, ids),
        lambda: index.add(["a", "b"], ids),
    ):
        with refusal(r"^ids? ", pc.PromptcliError):
            take()
    assert len(index) == 2


def test_an_index_of_which_all_was_deleted_has_no_near_duplicates(encoder):
    made = pc.SentenceIndex.build(["A cat sleeps."], encoder)
    made.delete([0])
    assert (made.dups(), made.search("A cat.")) == ([], [])


@pytest.mark.filterwarnings("error")
def test_lengths_of_very_large_and_very_small_vectors():
    rows = np.array([[3e38, 3e38], [3e-38, -4e-38], [0, 0], [3, 4]], np.float32)
    half = 0.5**0.5
    np.testing.assert_allclose(
        unit(rows), [[half, half], [0.6, -0.8], [0, 0], [0.6, 0.8]], rtol=1e-6
    )
    assert not np.isfinite(unit(np.array([[np.inf, 1], [np.nan, 1]], np.float32))).all(axis=1).any()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", [".npy", ".parquet"])
def test_numbers_beyond_float32_are_read_without_a_warning(kind, tmp_path):
    path, rows = tmp_path / f"v{kind}", [[1e300, 1.0], [2.0, 3.0]]
    if kind == ".npy":
        np.save(path, np.array(rows))
    else:
        pq.write_table(pa.table({"embedding": pa.array(rows, pa.list_(pa.float64()))}), path)
    assert read_vectors(path).matrix[0, 0] == np.inf


def test_of_a_text_of_any_length_only_what_can_matter_is_tokenised(monkeypatch):
    encoder = pc.load("mini", device="cpu")
    monkeypatch.setattr("promptcli.encoder.sentence_encoder.LONGEST_TEXT", 5000)
    text, taken, weights = "  " + "A cat sleeps. " * 10_000, [], encoder.pooling.weights
    token_ids = weights.token_ids
    monkeypatch.setattr(
        weights,
        "token_ids",
        lambda texts, *rest, **given: taken.extend(texts) or token_ids(texts, *rest, **given),
    )
    cut = encoder.encode_report([text])
    assert sum(map(len, taken)) <= 5001 and cut.truncated.all()
    monkeypatch.undo()
    assert np.array_equal(cut.vectors, encoder.encode([text]))


def test_a_forked_process_does_not_hang(monkeypatch):
    encoder = pc.load("mini", device="cpu")
    monkeypatch.setattr(batching, "_THREADED", set())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    encoder.encode(["A cat."])
    assert batching._THREADED == {os.getpid()}
    encoder.encode(["A cat."])
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as in a child
    with refusal("forked from one that had encoded in several threads", pc.PromptcliError):
        encoder.encode(["A cat."])


def test_training_leaves_the_global_random_numbers_alone(bert_folder, tmp_path):
    def drawn():
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    def seed():
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002
        torch.manual_seed(3)

    folder = str(bert_folder)
    seed()
    expected = drawn()
    seed()
    settings = {"batch_size": 4, "epochs": 0.5, "eval_steps": 9}
    pc.train("simcse", data=SENTENCES, backbone=folder, **settings)
    assert drawn() == expected
    seed()
    (tmp_path / "text.txt").write_text("".join(f"{text}\n" for text in SENTENCES * 20))
    small = {
        "layers": 1,
        "width": 16,
        "heads": 2,
        "vocab_size": 120,
        "tokens": 300,
        "batch_tokens": 128,
    }
    pc.pretrain(tmp_path / "text.txt", tmp_path / "out", positions=64, **small)
    assert drawn() == expected
