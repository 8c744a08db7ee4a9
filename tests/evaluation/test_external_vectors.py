"""`eval --list-sentences` and `eval --vectors`: vectors of other programs, row i of sentence i."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr

from promptcli.evaluation import evaluator
from tests.comparing import refused
from tests.senteval import write_pairs

WORDS = ["river", "stone", "lamp", "cloud", "bread", "chair", "flute", "garden", "horse", "window"]


#: Task -> its pairs; the two share sentences.
PAIRS = {
    name: [
        (f"a {WORDS[n % 10]} here", f"the {WORDS[n * 3 % 10]} there", (n - start) * 7 % 11 / 2)
        for n in range(start, start + 12)
    ]
    for name, start in (("STS12", 0), ("STS14", 5))
}


@pytest.fixture
def arguments(tmp_path):
    for name, pairs in PAIRS.items():
        write_pairs(tmp_path / "data", name, pairs, "images")
    return ["eval", "--data-dir", tmp_path / "data", "--task", "STS12", "--task", "STS14", "-q"]


@pytest.fixture
def sentences(run, arguments):
    return run(*arguments, "--list-sentences").out.splitlines()


@pytest.fixture
def matrix(sentences):
    return np.random.default_rng(0).standard_normal((len(sentences), 6)).astype(np.float32)


def test_the_list_holds_every_sentence_once(sentences):
    expected = {sentence for pairs in PAIRS.values() for *pair, _ in pairs for sentence in pair}
    assert (
        len(sentences) == len(expected)
        and set(sentences) == expected
        and sentences[0] == "a river here"
    )


def test_the_figure_is_the_plain_one_and_nothing_else_is_encoded(
    run, arguments, sentences, matrix, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        evaluator, "encode_together", lambda *given, **more: pytest.fail("nothing is to be encoded")
    )
    np.save(tmp_path / "use.npy", matrix)
    rows = run(*arguments, "--vectors", tmp_path / "use.npy", "--json").json["results"]
    assert [row["task"] for row in rows] == ["STS12", "STS14"]
    assert all((row["model"], row["recipe"]) == ("vectors", "use.npy") for row in rows)
    for row, pairs in zip(rows, PAIRS.values(), strict=True):
        cosines = []
        for one, other, _ in pairs:
            u, v = (
                matrix[sentences.index(one)].astype(float),
                matrix[sentences.index(other)].astype(float),
            )
            cosines.append(u @ v / np.sqrt((u @ u) * (v @ v)))
        assert row["value"] == pytest.approx(
            100 * spearmanr(cosines, [gold for *_, gold in pairs]).statistic, abs=1e-3
        )
    assert rows[0]["recipe_fields"] == {"vectors": "use.npy"} and len(rows[0]["fingerprint"]) == 64


@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("short.npy", 2, "but STS12, STS14 have"),
        ("other.parquet", 2, "row 1 is the vector of"),
        ("nan.npy", 2, "row 3 holds a NaN or an infinity"),
        ("none.npy", 3, "cannot be opened"),
        ("whole.npy", 2, "floating-point numbers of shape (n, d)"),
    ],
)
def test_vectors_that_do_not_fit_the_sentences_are_refused(
    run, arguments, matrix, sentences, tmp_path, name, code, message
):
    np.save(tmp_path / "short.npy", matrix[:-1])
    turned = [sentences[1], sentences[0], *sentences[2:]]
    pq.write_table(
        pa.table({"text": turned, "embedding": matrix.tolist()}), tmp_path / "other.parquet"
    )
    matrix[2, 1] = np.nan
    np.save(tmp_path / "nan.npy", matrix)
    np.save(tmp_path / "whole.npy", np.ones((len(matrix), 2), dtype=np.int64))
    said = refused(run(*arguments, "--vectors", tmp_path / name), code, message)
    assert (
        name in ("none.npy", "whole.npy", "nan.npy") or "`promptcli eval --list-sentences`" in said
    )


def test_our_own_vectors_get_our_own_figure_and_stand_beside_it(
    run, arguments, sentences, tmp_path, bert_folder
):
    (tmp_path / "sentences.txt").write_text("\n".join(sentences) + "\n")
    chosen = ["--model", "last-avg", "--backbone", bert_folder, "--offline"]
    vectors = tmp_path / "own.npy"
    embedded = run(
        "embed", tmp_path / "sentences.txt", "-o", vectors, "--dtype", "float32", "-q", *chosen
    )
    assert embedded.code == 0, embedded.err
    document = run(
        *arguments, *chosen, "--vectors", vectors, "--compare", "last-avg", "--json"
    ).json
    values = {(row["recipe"], row["task"]): row["value"] for row in document["results"]}
    for task in ("STS12", "STS14"):
        assert values["own.npy", task] == pytest.approx(values["last-avg", task], abs=0.01)
    (first, _) = document["comparisons"]
    assert (first["recipe"], first["against"]["recipe"]) == ("own.npy", "last-avg")
    # from the manifest next to the file
    assert document["results"][0]["recipe_fields"]["pooling"] == "last/avg"
    table = run(*arguments, *chosen, "--vectors", vectors).out
    assert any(line.startswith("vectors own.npy") for line in table.splitlines())
