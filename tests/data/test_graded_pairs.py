"""A user's own file of graded pairs as a task, for scoring and for choosing by."""

import pytest

from promptcli.data.task_table import read_graded_pairs
from promptcli.data.tasks import graded_task_names, load_graded_tasks
from promptcli.data.training_data import development_task
from tests.comparing import refusal
from tests.source_files import write, write_table

ROWS = [
    ("We eat.", "Wir essen.", 4.0),
    ("A dog runs.", "Ein Hund rennt.", 4.5),
    ('He said "no", then left.', "Sie lacht.", -1.0),
    ("Snow.", "Ice.", 80.0),
]
COLUMNS = ("sentence1", "sentence2", "score")
MORE = [(*row, number) for number, row in enumerate(ROWS)]  # a column more than is asked for


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_every_format_with_usual_and_with_named_columns(suffix, tmp_path):
    assert (
        read_graded_pairs(write_table(tmp_path / f"pairs.{suffix}", (*COLUMNS, "n"), MORE)) == ROWS
    )
    other = write_table(tmp_path / f"other.{suffix}", ("left", "right", "gold", "n"), MORE)
    (task,) = load_graded_tasks(None, graded_task_names([f"{other}:left,right,gold"])).tasks
    pairs = task.pairs()
    assert list(zip(pairs.first, pairs.second, pairs.gold.tolist(), strict=True)) == ROWS
    assert (task.label, task.expected_pairs) == (f"{other}:left,right,gold", 4)
    with refusal(f'"{other}:left,right,gold"; columns: left, right, gold'):
        read_graded_pairs(other)


HEADER = "sentence1,sentence2,score\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "sentence1,sentence2,n\na,b,1\n",
            "no columns sentence1, .*, score; .*: sentence1, sentence2, n",
        ),
        (
            "a.csv",
            "sentence1,sentence2,label\na,b,entailment\n",
            "score 'entailment' in 'label' is not a number",
        ),
        ("a.csv", f'{HEADER}"a\nb",c,1\nd,e,high\n', "a.csv: row 2: the score 'high' in 'score'"),
        ("a.csv", f'{HEADER}a,b,"1,5"\n', "'1,5' in 'score' is not a number, such as 1.5"),
        ("a.tsv", "sentence1\tsentence2\tscore\na\tb\tnan\n", "a.tsv: row 1: the score 'nan'"),
        ("a.csv", f"{HEADER}a,b,3\nc,d,3.0\n", r"every score is 3 \(2 pairs\)"),
        ("a.csv", f"{HEADER}\n\n", "is empty"),
        ("a.txt", "one\ntwo\n", r"give a table .* sentence1, .* \(.csv, .tsv or .jsonl\)$"),
    ],
)
def test_files_that_are_not_a_task_are_refused(name, text, message, tmp_path):
    path = write(tmp_path, name, text)
    with refusal(message) as caught:
        development_task(str(path))
    assert "\n" not in str(caught.value)
