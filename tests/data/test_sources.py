"""Where sentences to fit on come from: pairs of natural language inference, all splits of a task."""

import json
import os
import threading

import pytest

from promptcli.data.senteval import tasks_from
from promptcli.data.sources import development_task, fitting_sentences
from promptcli.errors import NotFoundError, UsageError
from tests.reading import parquet, write

#: (first, second) of every file below.
PAIRS = [("A dog runs.", "An animal moves."), ('He said "no".', "He agreed."), ("A dog runs.", "It sleeps, alone.")]
SIDES = ([first for first, _ in PAIRS], [second for _, second in PAIRS])
LABELS = ["entailment", "contradiction", "neutral"]

CSV = """sent0,sent1,hard_neg
A dog runs.,An animal moves.,x
"He said ""no"".",He agreed.,x
A dog runs.,"It sleeps, alone.",x
"""
JSONL = "".join(json.dumps({"gold_label": "-", "sentence1": a, "sentence2": b, "n": 1}) + "\n" for a, b in PAIRS)
LABELLED = "".join(f"{label}\t{one}\t{two}\tsource\n" for label, (one, two) in zip(LABELS, PAIRS, strict=True))
TSV = "label\tpremise\thypothesis\n" + "".join(f"neutral\t{one}\t{two}\n" for one, two in PAIRS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nli.csv", CSV),
        ("nli.jsonl", JSONL),
        ("nli.tsv", LABELLED),
        ("nli.txt", LABELLED),
        ("nli.tsv.gz", LABELLED),
        ("headed.tsv", TSV),
    ],
)
def test_both_sides_of_a_file_of_pairs(name, text, tmp_path):
    assert fitting_sentences(str(write(tmp_path, name, text))) == [*SIDES[0], *SIDES[1]]


def test_both_sides_of_a_parquet_file_and_one_side_by_its_name(tmp_path):
    path = parquet(tmp_path, {"premise": SIDES[0], "label": LABELS, "hypothesis": SIDES[1]})
    assert fitting_sentences(str(path)) == [*SIDES[0], *SIDES[1]]
    assert fitting_sentences(str(write(tmp_path, "nli.csv", CSV)), text_field="sent1") == SIDES[1]


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


LINES = [f"sentence number {number} of many" for number in range(20_000)]


GRADED = "".join(json.dumps({"sentence1": line, "sentence2": "b", "score": at}) + "\n" for at, line in enumerate(LINES))


@pytest.mark.parametrize(
    ("name", "text", "read", "sentences"),
    [
        ("pipe", "\n".join(LINES), fitting_sentences, LINES),
        ("pipe", "".join(f"neutral\t{line}\tb\n" for line in LINES), fitting_sentences, LINES + ["b"] * len(LINES)),
        ("rows.jsonl", GRADED, fitting_sentences, LINES + ["b"] * len(LINES)),
        ("rows.jsonl", GRADED, lambda path: development_task(path).pairs().first, LINES),
    ],
    ids=["sentences", "labelled", "rows", "graded"],
)
def test_a_pipe_loses_no_line(name, text, read, sentences, tmp_path):
    os.mkfifo(tmp_path / name)
    writer = threading.Thread(target=(tmp_path / name).write_text, args=(text,), daemon=True)
    writer.start()
    assert read(str(tmp_path / name)) == sentences
    writer.join(timeout=300)
    assert not writer.is_alive()


def test_a_pipe_of_parquet_is_refused(tmp_path):
    os.mkfifo(tmp_path / "rows.parquet")
    with pytest.raises(UsageError, match=r"is a pipe"):
        fitting_sentences(str(tmp_path / "rows.parquet"))
