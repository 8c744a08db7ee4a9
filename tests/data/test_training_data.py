"""Sentences, pairs and training examples from files, tasks, lists and data sets, each read in one
pass.
"""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcli.data.input_files import names_file, split_text_column
from promptcli.data.layouts import GRADED_PAIRS, LABELLED_PAIRS, PAIRS, TRIPLETS, ColumnChoice
from promptcli.data.rows import open_rows
from promptcli.data.training_data import (
    development_task,
    examples_of,
    fitting_sentences,
    read_examples,
    sentences_with_column,
    training_examples,
)
from promptcli.errors import NotFoundError
from tests.comparing import refusal
from tests.source_files import write, write_parquet, write_table

#: (first, second) of every file below.
NLI = [
    ("A dog runs.", "An animal moves."),
    ('He said "no".', "He agreed."),
    ("A dog runs.", "It sleeps, alone."),
]
SIDES = ([first for first, _ in NLI], [second for _, second in NLI])
LABELS = ["entailment", "contradiction", "neutral"]

CSV = """sent0,sent1,hard_neg
A dog runs.,An animal moves.,x
"He said ""no"".",He agreed.,x
A dog runs.,"It sleeps, alone.",x
"""
JSONL = "".join(
    json.dumps({"gold_label": "-", "sentence1": a, "sentence2": b, "n": 1}) + "\n" for a, b in NLI
)
TSV = "label\tpremise\thypothesis\n" + "".join(f"neutral\t{one}\t{two}\n" for one, two in NLI)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nli.csv", CSV),
        ("nli.jsonl", JSONL),
        ("nli.tsv", TSV),
        ("nli.tsv.gz", TSV),
    ],
)
def test_both_sides_of_a_file_of_pairs(name, text, tmp_path):
    assert fitting_sentences(str(write(tmp_path, name, text))) == [*SIDES[0], *SIDES[1]]


def test_both_sides_of_a_parquet_file_and_one_side_by_its_name(tmp_path):
    path = write_parquet(tmp_path, {"premise": SIDES[0], "label": LABELS, "hypothesis": SIDES[1]})
    assert fitting_sentences(str(path)) == [*SIDES[0], *SIDES[1]]
    assert fitting_sentences(str(write(tmp_path, "nli.csv", CSV)), text_field="sent1") == SIDES[1]


@pytest.mark.parametrize(
    ("name", "text", "sentences"),
    [
        (
            "plain.txt",
            "one\nneutral ground\nneutral\ttwo\n",
            ["one", "neutral ground", "neutral\ttwo"],
        ),
        ("one.csv", "premise,text\na,b\n", ["b"]),  # half a pair is none
        ("rows.jsonl", '{"text": "a"}\n', ["a"]),
    ],
)
def test_files_of_sentences_stay_files_of_sentences(name, text, sentences, tmp_path):
    (tmp_path / name).write_text(text)
    assert fitting_sentences(str(tmp_path / name)) == sentences


def test_a_pipe_of_parquet_is_refused(tmp_path):
    os.mkfifo(tmp_path / "rows.parquet")
    with refusal(r"is a pipe"):
        fitting_sentences(str(tmp_path / "rows.parquet"))


ROWS = [
    ("A dog runs.", "An animal moves.", "entailment"),
    ("He said no.", "He agreed.", "contradiction"),
    ("A dog runs.", "It is brown.", "neutral"),
]
COLUMNS = tuple(list(column) for column in zip(*ROWS, strict=True))
NUMBERS = {"entailment": 0, "neutral": 1, "contradiction": 2}


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize("names", [LABELLED_PAIRS, ("sentence1", "sentence2", "gold_label")])
def test_labelled_pairs_of_every_format_and_spelling(suffix, numbers, names, tmp_path):
    unlabelled = -1 if numbers else "-"
    rows = [(*row[:2], NUMBERS[row[2]] if numbers else row[2]) for row in ROWS]
    write_table(tmp_path / f"nli.{suffix}", names, [*rows, ("Nobody", "agreed", unlabelled)])
    examples = read_examples(tmp_path / f"nli.{suffix}", [LABELLED_PAIRS])
    assert (examples.columns, examples.unlabelled_count) == (COLUMNS, 1)
    assert examples.layout == LABELLED_PAIRS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "premise\thypothesis\tlabel\na\tb\tmaybe\n",
            "row 1 has the label 'maybe'; use entailment",
        ),
        (
            "premise\thypothesis\tlabel\na\tb\t0\nc\td\tentailment\n",
            "all 2 labels are 'entailment'",
        ),
        ("premise\thypothesis\tlabel\na\tb\t-1\n", "no sentence to train on"),
        ("premise\thypothesis\na\tb\n", "no columns premise, hypothesis, label"),
    ],
)
def test_labels_that_cannot_be_learned_from(text, message, tmp_path):
    (tmp_path / "nli.tsv").write_text(text)
    with refusal(message):
        read_examples(tmp_path / "nli.tsv", [LABELLED_PAIRS])


def test_examples_may_come_from_memory():
    assert examples_of([first for first, _, _ in ROWS]).columns == COLUMNS[:1]
    assert examples_of([row[:2] for row in ROWS]).layout == PAIRS
    assert examples_of(ROWS).layout == TRIPLETS
    assert examples_of(ROWS, [LABELLED_PAIRS]).columns == COLUMNS
    assert (
        examples_of([{"sent1": second, "sent0": first} for first, second, _ in ROWS]).columns
        == COLUMNS[:2]
    )
    datasets = pytest.importorskip("datasets")
    named = {
        "premise": COLUMNS[0],
        "label": [NUMBERS[label] for label in COLUMNS[2]],
        "hypothesis": COLUMNS[1],
    }
    found = examples_of(datasets.Dataset.from_dict(named), [LABELLED_PAIRS])
    assert found.columns == COLUMNS
    for wrong, message in (
        (None, "is None"),
        ("\0", "holds a NUL"),
        ("\ud800", "holds half a surrogate"),
    ):
        with refusal(f"row 2: 'text' {message}"):
            examples_of(["a", wrong])
    with refusal("no sentence to train on"):
        examples_of([])


def test_pairs_and_triplets_stand_together(tmp_path):
    write_table(tmp_path / "t.csv", TRIPLETS, [("a", "b", "c"), ("d", "e", " "), ("f", "", "g")])
    write_table(tmp_path / "p.tsv", PAIRS, [("h", "i")])
    triplets = training_examples([tmp_path / "t.csv"])
    both = training_examples([tmp_path / "p.tsv", tmp_path / "t.csv"])
    assert (triplets.columns, triplets.blank_count) == ((["a", "d"], ["b", "e"], ["c", ""]), 1)
    assert both.columns == (["h", "a", "d"], ["i", "b", "e"], ["", "c", ""])
    assert (both.layout, both.sizes, both.blank_count) == (TRIPLETS, (1, 2), 1)
    assert training_examples([str(tmp_path / "p.tsv"), str(tmp_path / "t.csv")]) == both
    assert both.select([True, False, True]).sizes == (1, 1)
    assert examples_of([("a", "b"), ("c", "d", "e"), ("f", "g", None)]).columns[2] == ["", "e", ""]
    for name in ("t.jsonl", "t.parquet"):
        write_table(tmp_path / name, TRIPLETS, [("a", "b", "c"), ("d", "e", None)])
        assert read_examples(tmp_path / name).columns == triplets.columns
    (tmp_path / "t.jsonl").write_text(
        '{"sent0": "a", "sent1": "b", "hard_neg": "c"}\n{"sent0": "d", "sent1": "e"}\n'
    )
    assert read_examples(tmp_path / "t.jsonl").columns == triplets.columns
    write_table(tmp_path / "none.csv", TRIPLETS, [("a", "b", "")])
    assert read_examples(tmp_path / "none.csv").layout == PAIRS
    (tmp_path / "lines.txt").write_text("one\n")
    with refusal(r"lines.txt: sentences|p.tsv: sent0, sent1"):
        training_examples([tmp_path / "p.tsv", tmp_path / "lines.txt"])
    with refusal("missing", NotFoundError):
        training_examples([str(tmp_path / "p.tsv"), str(tmp_path / "missing.csv")])


NEGATIVES = [
    ("A cat.", "A cat sleeps.", "A dog.", "A door."),
    ("It rains.", "Rain falls.", "", "A boat."),
]


@pytest.mark.parametrize(
    "names",
    ["negative_1 negative_2", "negative negative.1", "hard_neg hard_neg2"],
)
@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "parquet"])
def test_all_columns_of_hard_negatives_are_read(names, ending, tmp_path):
    header = ("anchor", "positive", *names.split())
    path = tmp_path / f"n.{ending}"
    write_table(path, header, NEGATIVES)
    examples = read_examples(path)
    assert examples.columns == tuple(map(list, zip(*NEGATIVES, strict=True)))
    assert examples.layout == TRIPLETS and examples.rows_without_negative == []
    assert examples_of(NEGATIVES).columns == examples.columns
    assert (
        training_examples(f"{path}:1,2,3,4" if ending == "csv" else str(path)).columns
        == examples.columns
    )


def test_hard_negatives_of_several_sources_and_of_single_rows(tmp_path):
    write_table(tmp_path / "one.csv", TRIPLETS, [("a", "b", "c"), ("d", "e", "")])
    write_table(tmp_path / "two.csv", ("anchor", "positive", "negative_1", "negative_2"), NEGATIVES)
    both = training_examples([tmp_path / "one.csv", tmp_path / "two.csv"])
    assert both.columns[2:] == (["c", "", "A dog.", ""], ["", "", "A door.", "A boat."])
    assert both.rows_without_negative == [1]
    rows = [
        {"anchor": "a", "positive": "b"},
        {"anchor": "d", "positive": "e", "negative_1": "f", "negative_2": "g"},
    ]
    assert examples_of(rows).columns[2:] == (["", "f"], ["", "g"])
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_examples(tmp_path / "rows.jsonl").columns[2:] == (["", "f"], ["", "g"])
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows[::-1])))
    assert read_examples(tmp_path / "rows.jsonl").columns[2:] == (["f", ""], ["g", ""])


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1)
)
def test_every_sentence_of_a_list_is_kept_or_counted(sentences):
    if not any(sentence.strip() for sentence in sentences):
        with refusal("no sentence to train on"):
            examples_of(sentences)
        return
    examples = examples_of(sentences)
    assert examples.columns[0] == [sentence for sentence in sentences if sentence.strip()]
    assert len(examples) + examples.blank_count == len(sentences)


FIRST = '{"q": "A cat.", "p": "A cat sleeps.", "n": "A dog."}'
TRIPLET_ROWS = (["A cat.", "It rains."], ["A cat sleeps.", "Rain falls."], ["A dog.", ""])


@pytest.mark.parametrize(
    ("name", "text", "columns"),
    [
        (
            "a.csv",
            "sent0;sent1;hard_neg\nA cat.;A cat sleeps.;A dog.\nIt rains.;Rain falls.;NaN\n",
            "",
        ),
        (
            "a.tsv",
            "anchor\tpositive\tnegative\n"
            "A cat.\tA cat sleeps.\tA dog.\nIt rains.\tRain falls.\tNone\n",
            "",
        ),
        ("a.csv", "n,a,b,c\n1,A cat.,A cat sleeps.,A dog.\n2,It rains.,Rain falls.,\n", ":a,b,c"),
        (
            "a.csv",
            "n,a,b,c\n1,A cat.,A cat sleeps.,A dog.\n2,It rains.,Rain falls.,null\n",
            ":2,3,4",
        ),
        (
            "a.json",
            json.dumps(
                [dict(zip(TRIPLETS, row, strict=True)) for row in zip(*TRIPLET_ROWS, strict=True)]
            ),
            "",
        ),
        ("a.jsonl", f'{FIRST}\n{{"q": "It rains.", "p": "Rain falls."}}', ":q,p,n"),
        ("a.jsonl", f'{FIRST}\n{{"q": "It rains.", "p": "Rain falls.", "n": NaN}}', ":q,p,n"),
    ],
)
def test_triplets_of_any_dialect_and_by_the_names_of_their_columns(name, text, columns, tmp_path):
    source = f"{write(tmp_path, name, text)}{columns}"
    for data in (source, [source], [write(tmp_path, "pairs.csv", "sent0,sent1\na,b\n"), source]):
        examples = training_examples(data)
        assert (
            tuple(column[-2:] for column in examples.columns) == TRIPLET_ROWS
            and examples.layout == TRIPLETS
        )


def test_the_remedies_of_a_refused_table_work(tmp_path):
    path = write(tmp_path, "a.csv", "title;body\nOne;A cat.\nTwo;A dog.\n")
    with refusal(r"name the columns, e\.g\. .*a\.csv:title,body"):
        training_examples(str(path))
    assert training_examples(f"{path}:body").columns == (["A cat.", "A dog."],)
    assert training_examples(f"{path}:title,body").layout == PAIRS
    assert fitting_sentences(f"{path}:body") == ["A cat.", "A dog."]
    for names, message in (("a,b,c,d", "no column 'a'"), ("body,x", "no column 'x'")):
        with refusal(message):
            training_examples(f"{path}:{names}")
    with refusal(r"plain text and has no columns; .*a,b.*, or name no columns"):
        training_examples(f"{write(tmp_path, 'b.txt', 'one')}:a,b")


@pytest.mark.parametrize(
    ("name", "text", "scores"),
    [
        ("a.csv", "sentence1;sentence2;score\na;b;3.8\nc;d;1\n", [3.8, 1]),
        (
            "a.jsonl",
            '{"question1": "a", "question2": "b", "is_duplicate": true}\n'
            '{"question1": "c", "question2": "d", "is_duplicate": false}',
            [1, 0],
        ),
        ("a.csv", "question1,question2,is_duplicate\na,b,True\nc,d,False\n", [1, 0]),
        ("a.csv", "sentence1,sentence2,score\na,b,-1\nc,d,0\ne,f,1\n", [-1, 0, 1]),
        (
            "a.jsonl",
            '{"sentence1": "a", "sentence2": "b", "score": -0.25}\n'
            '{"sentence1": "c", "sentence2": "d", "score": -1}',
            [-0.25, -1],
        ),
    ],
)
def test_scores_as_people_write_them(name, text, scores, tmp_path):
    path = write(tmp_path, name, text)
    assert development_task(path).pairs().gold.tolist() == scores
    assert list(map(float, training_examples(path, layouts=[GRADED_PAIRS]).columns[2])) == scores


def test_scores_of_numpy_are_numbers():
    rows = [("a", "b", np.float64(3.5)), ("c", "d", np.float64(1.0))]
    assert examples_of(rows, (GRADED_PAIRS,)).columns[2] == ["3.5", "1.0"]


def test_a_column_is_found_under_a_name_as_renamed_ones_have(tmp_path):
    path = write(tmp_path, "a.csv", "text,id.1\nOne cat.,red\nTwo dogs.,blue\n")
    assert sentences_with_column(str(path), "id.1")[1] == ["red", "blue"]


def test_scores_with_a_decimal_comma_are_said(tmp_path):
    path = write(tmp_path, "a.csv", "sentence1;sentence2;score\na;b;3,8\nc;d;1.250\n")
    with refusal("row 1 has the score '3,8'"):
        training_examples(path, layouts=[GRADED_PAIRS])
    read = training_examples(path, layouts=[GRADED_PAIRS], csv={"decimal_separator": ","})
    assert read.columns[2] == ["3.8", "1250.0"]


@pytest.mark.parametrize("value", ["[1]", "null"])
def test_a_score_that_is_none(value, tmp_path):
    path = write(tmp_path, "a.jsonl", f'{{"sentence1": "a", "sentence2": "b", "score": {value}}}')
    with refusal(r"line 1: 'score' is .*number"):
        development_task(path)


SURVEY = (
    "id,comment,rating,day\n1,The food was good.,5,2024-01-02\n2,It was too loud.,3,2024-01-03\n"
)


def test_a_column_of_numbers_is_no_text(tmp_path):
    path = write(tmp_path, "a.tsv", "a\tb\tscore\nOne.\tTwo.\t4.6\nSix.\tTen.\t0.3\n")
    with refusal("column 'score' holds numbers; hard_neg must be text"):
        training_examples(f"{path}:a,b,score")
    assert training_examples(f"{path}:a,b,score", layouts=[GRADED_PAIRS]).layout == GRADED_PAIRS


def test_a_misspelt_column_is_guessed_or_others_are_named(tmp_path):
    path = write(tmp_path, "a.csv", SURVEY)
    for choice, source in ((ColumnChoice("coment"), path), (ColumnChoice(), f"{path}:coment")):
        with (
            refusal("did you mean comment"),
            open_rows(source, choice),
        ):
            pass
    with refusal(r"no columns sent0, sent1; .*a\.csv:id,comment"):
        read_examples(path, [PAIRS])


def test_a_file_with_its_column_is_no_sentence(here):
    write(here, "a.csv", SURVEY)
    assert names_file("a.csv") and names_file("a.csv:comment")
    assert not names_file("a.csv: see below") and not names_file("b.csv:comment")
    assert split_text_column(["a.csv:comment"], None) == (["a.csv"], "comment")
    assert split_text_column(["a.csv"], "comment") == (["a.csv"], "comment")
    assert split_text_column(["a.csv:day,comment"], None) == (["a.csv"], "day,comment")
    for words, field, said in (
        (["a.csv:comment"], "id", "leave one out"),
        (["a.csv:comment", "a.csv:rating"], None, "different columns; give one for all"),
    ):
        with refusal(said):
            split_text_column(words, field)
    write(here, "a.csv:comment", "A file of this very name.\n")
    assert split_text_column(["a.csv:comment"], None) == (["a.csv:comment"], None)
