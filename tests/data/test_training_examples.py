"""Training examples from files, lists and data sets, each read in one pass; labelled pairs."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcli.data.sources import LABELLED_PAIRS, PAIRS, TRIPLETS, examples_of, read_examples, training_examples
from promptcli.errors import NotFoundError, UsageError

ROWS = [
    ("A dog runs.", "An animal moves.", "entailment"),
    ("He said no.", "He agreed.", "contradiction"),
    ("A dog runs.", "It is brown.", "neutral"),
]
COLUMNS = tuple(list(column) for column in zip(*ROWS, strict=True))
NUMBERS = {"entailment": 0, "neutral": 1, "contradiction": 2}


def write(path, names, rows):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({name: [row[at] for row in rows] for at, name in enumerate(names)}), path)
    else:
        separator = "\t" if path.suffix == ".tsv" else ","
        path.write_text("".join(separator.join(map(str, row)) + "\n" for row in [names, *rows]))


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("names", [LABELLED_PAIRS, ("sentence1", "sentence2", "gold_label")])
def test_labelled_pairs_of_every_format_and_spelling(suffix, numbers, names, tmp_path):
    unlabelled = -1 if numbers else "-"
    rows = [(*row[:2], NUMBERS[row[2]] if numbers else row[2]) for row in ROWS]
    write(tmp_path / f"nli.{suffix}", names, [*rows, ("Nobody", "agreed", unlabelled)])
    lines = [f"{label}\t{first}\t{second}\tsource" for first, second, label in [*ROWS, ("a", "b", "-")]]
    (tmp_path / "headless.tsv").write_text("\n".join(lines))
    for name in (f"nli.{suffix}", "headless.tsv"):
        examples = read_examples(tmp_path / name, [LABELLED_PAIRS])
        assert (examples.columns, examples.unlabelled, examples.layout) == (COLUMNS, 1, LABELLED_PAIRS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("premise\thypothesis\tlabel\na\tb\tmaybe\n", "row 1 has the label 'maybe'; give entailment"),
        ("premise\thypothesis\tlabel\na\tb\t0\nc\td\tentailment\n", "all 2 labels are 'entailment'"),
        ("premise\thypothesis\tlabel\na\tb\t-1\n", "no sentence to train on"),
        ("premise\thypothesis\na\tb\n", "give a file with the columns premise, hypothesis, label"),
    ],
)
def test_labels_that_cannot_be_learned_from(text, message, tmp_path):
    (tmp_path / "nli.tsv").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_examples(tmp_path / "nli.tsv", [LABELLED_PAIRS])


def test_examples_from_memory():
    assert examples_of([first for first, _, _ in ROWS]).columns == COLUMNS[:1]
    assert examples_of([row[:2] for row in ROWS]).layout == PAIRS
    assert examples_of(ROWS).layout == TRIPLETS
    assert examples_of(ROWS, [LABELLED_PAIRS]).columns == COLUMNS
    assert examples_of([{"sent1": second, "sent0": first} for first, second, _ in ROWS]).columns == COLUMNS[:2]
    datasets = pytest.importorskip("datasets")
    named = {"premise": COLUMNS[0], "label": [NUMBERS[label] for label in COLUMNS[2]], "hypothesis": COLUMNS[1]}
    found = examples_of(datasets.Dataset.from_dict(named), [LABELLED_PAIRS])
    assert found.columns == COLUMNS
    for wrong, message in (
        (None, "is None; a sentence is text"),
        ("\0", "holds a NUL"),
        ("\ud800", "holds half a surrogate"),
    ):
        with pytest.raises(UsageError, match=f"row 2: 'text' {message}"):
            examples_of(["a", wrong])
    with pytest.raises(UsageError, match="no sentence to train on"):
        examples_of([])


def test_pairs_and_triplets_stand_together(tmp_path):
    write(tmp_path / "t.csv", TRIPLETS, [("a", "b", "c"), ("d", "e", " "), ("f", "", "g")])
    write(tmp_path / "p.tsv", PAIRS, [("h", "i")])
    triplets, both = (
        training_examples([tmp_path / name for name in names]) for names in (["t.csv"], ["p.tsv", "t.csv"])
    )
    assert (triplets.columns, triplets.blank) == ((["a", "d"], ["b", "e"], ["c", ""]), 1)
    assert both.columns == (["h", "a", "d"], ["i", "b", "e"], ["", "c", ""])
    assert (both.layout, both.sizes, both.blank) == (TRIPLETS, (1, 2), 1)
    assert training_examples([str(tmp_path / "p.tsv"), str(tmp_path / "t.csv")]) == both
    assert both.only([True, False, True]).sizes == (1, 1)
    assert examples_of([("a", "b"), ("c", "d", "e"), ("f", "g", None)]).columns[2] == ["", "e", ""]
    for name in ("t.jsonl", "t.parquet"):
        write(tmp_path / name, TRIPLETS, [("a", "b", "c"), ("d", "e", None)])
        assert read_examples(tmp_path / name).columns == triplets.columns
    (tmp_path / "t.jsonl").write_text('{"sent0": "a", "sent1": "b", "hard_neg": "c"}\n{"sent0": "d", "sent1": "e"}\n')
    assert read_examples(tmp_path / "t.jsonl").columns == triplets.columns
    write(tmp_path / "none.csv", TRIPLETS, [("a", "b", "")])
    assert read_examples(tmp_path / "none.csv").layout == PAIRS
    (tmp_path / "lines.txt").write_text("one\n")
    with pytest.raises(UsageError, match=r"lines.txt: sentences|p.tsv: sent0, sent1"):
        training_examples([tmp_path / "p.tsv", tmp_path / "lines.txt"])
    with pytest.raises(NotFoundError, match="missing"):
        training_examples([str(tmp_path / "p.tsv"), str(tmp_path / "missing.csv")])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1))
def test_every_sentence_of_a_list_is_kept_or_counted(sentences):
    if not any(sentence.strip() for sentence in sentences):
        with pytest.raises(UsageError, match="no sentence to train on"):
            examples_of(sentences)
        return
    examples = examples_of(sentences)
    assert examples.columns[0] == [sentence for sentence in sentences if sentence.strip()]
    assert len(examples) + examples.blank == len(sentences)
