"""Where sentences to fit on come from: pairs of natural language inference, all splits of a task."""

import gzip
import json
import os
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from promptcli.data.senteval import tasks_from
from promptcli.data.sources import fitting_sentences
from promptcli.errors import NotFoundError, UsageError

#: (first, second) of every file below.
PAIRS = [("A dog runs.", "An animal moves."), ('He said "no".', "He agreed."), ("A dog runs.", "It sleeps, alone.")]
SIDES = ([first for first, _ in PAIRS], [second for _, second in PAIRS])
LABELS = ["entailment", "contradiction", "neutral"]


def csv_of(path, first="sent0", second="sent1"):
    quoted = [[f'"{text.replace(chr(34), chr(34) * 2)}"' for text in pair] for pair in PAIRS]
    path.write_text(f"{first},{second},hard_neg\n" + "".join(f"{one},{two},x\n" for one, two in quoted))


def jsonl_of(path):
    rows = ({"gold_label": "-", "sentence1": one, "sentence2": two, "n": 1} for one, two in PAIRS)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def labelled_of(path):
    text = "".join(f"{label}\t{one}\t{two}\tsource\n" for label, (one, two) in zip(LABELS, PAIRS, strict=True))
    (gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w")).write(text)


def tsv_of(path):
    path.write_text("label\tpremise\thypothesis\n" + "".join(f"neutral\t{one}\t{two}\n" for one, two in PAIRS))


def parquet_of(path):
    pq.write_table(pa.table({"premise": SIDES[0], "label": LABELS, "hypothesis": SIDES[1]}), path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("nli.csv", csv_of),
        ("nli.jsonl", jsonl_of),
        ("nli.tsv", labelled_of),
        ("nli.txt", labelled_of),
        ("nli.tsv.gz", labelled_of),
        ("headed.tsv", tsv_of),
        ("nli.parquet", parquet_of),
    ],
)
def test_both_sides_of_a_file_of_pairs(name, write, tmp_path):
    write(tmp_path / name)
    assert fitting_sentences(str(tmp_path / name)) == [*SIDES[0], *SIDES[1]]


def test_a_named_field_is_one_side(tmp_path):
    csv_of(tmp_path / "nli.csv")
    assert fitting_sentences(str(tmp_path / "nli.csv"), text_field="sent1") == SIDES[1]


@pytest.mark.parametrize(
    ("name", "text", "sentences"),
    [
        ("plain.txt", "one\nneutral ground\nneutral\ttwo\n", ["one", "neutral ground", "neutral\ttwo"]),
        ("one.csv", "premise,text\na,b\n", ["b"]),  # half a pair is none
        ("rows.jsonl", '{"text": "a"}\n', ["a"]),
    ],
)
def test_files_of_sentences_stay_files_of_sentences(name, text, sentences, tmp_path):
    (tmp_path / name).write_text(text)
    assert fitting_sentences(str(tmp_path / name)) == sentences


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "nli.tsv",
            "neutral\ta\tb\nneutral\ta\n",
            "nli.tsv: line 2: 2 columns, but the header has 3",
        ),
        ("nli.csv", "sent0,sent1\na,b\na\n", "nli.csv: line 3: 1 columns, but the header has 2"),
        ("empty.txt", "", "empty.txt is empty"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=message):
        fitting_sentences(str(tmp_path / name))


def test_all_splits_of_a_task(run, tmp_path):
    for split, sentence in (("train", "a"), ("dev", "b"), ("test", "c")):
        path = tmp_path / "STS" / "STSBenchmark" / f"sts-{split}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"g\tf\ty\t1\t3\t{sentence}\tother {sentence}\n")
    with tasks_from(tmp_path):
        assert fitting_sentences("STS-B:all") == ["a", "b", "c", "other a", "other b", "other c"]
        assert fitting_sentences("STS-B") == ["c", "other c"]
        with pytest.raises(NotFoundError, match="task SICK-R:all is missing: "):
            fitting_sentences("SICK-R:all")
        with pytest.raises(NotFoundError, match="no file 'STS12:all' with sentences, and unknown task"):
            fitting_sentences("STS12:all")
    ran = run("fit", "--model", "first-last-tfidf", "--on", "STS-B:all", "--data-dir", tmp_path, "--name", "t")
    assert ran.code == 0 and "fitted on 6 sentences of STS-B:all" in ran.err
    assert run("eval", "--task", "STS-B:all", "--data-dir", tmp_path).code == 2


# --- pipes are read once, and whole


@pytest.fixture
def piped(tmp_path):
    """Return the path of a real pipe into which a thread writes a text, once."""
    threads = []

    def make(text, name="pipe"):
        path = tmp_path / name
        os.mkfifo(path)
        threads.append(threading.Thread(target=path.write_text, args=(text,), daemon=True))
        threads[-1].start()
        return path

    yield make
    for thread in threads:
        thread.join(timeout=300)
        assert not thread.is_alive()


LINES = [f"sentence number {number} of many" for number in range(20_000)]


def test_a_pipe_of_sentences_loses_no_line(piped):
    assert fitting_sentences(str(piped("\n".join(LINES)))) == LINES


def test_a_pipe_of_labelled_pairs_loses_no_line(piped):
    text = "".join(f"neutral\t{line}\tother {line}\n" for line in LINES)
    assert fitting_sentences(str(piped(text))) == [*LINES, *(f"other {line}" for line in LINES)]


def test_a_pipe_of_rows_loses_no_row(piped):
    text = "".join(json.dumps({"sentence1": line, "sentence2": "b", "score": 1}) + "\n" for line in LINES)
    assert fitting_sentences(str(piped(text, "rows.jsonl"))) == [*LINES, *["b"] * len(LINES)]


def test_a_pipe_of_parquet_or_vectors_is_refused_in_one_line(tmp_path):
    for name in ("rows.parquet", "rows.npy"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(UsageError, match=r"is a pipe"):
        fitting_sentences(str(tmp_path / "rows.parquet"))
