"""Tables as people export them: the values read, and refusals that say what to type."""

import datetime
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcli.data.csv_options import CsvOptions, csv_options
from promptcli.data.layouts import GRADED_PAIRS, ColumnChoice
from promptcli.data.rows import open_rows
from promptcli.data.training_data import training_examples
from tests.comparing import refusal
from tests.source_files import records, write


def table(path, csv=None, skip_bad=None):
    """Return the types of the other columns, and the cells of all rows."""
    with open_rows(path, ColumnChoice(cells=True), csv=csv, skip_bad=skip_bad) as rows:
        read = [row for batch in rows for row in records(batch)]
    return dict(rows.types), [{key: row[key] for key in ("text", *rows.types)} for row in read]


GERMAN = 'Nr;text;Preis;Tag\nA-1;"Der Hund\nschläft";1.204,50;31.12.2024\nA-2;Es regnet;3,50;\n'


def test_a_german_export_is_text_until_it_is_said_how_it_is_written(tmp_path):
    path = write(tmp_path, "a.csv", GERMAN)
    types, rows = table(path)
    assert types == dict.fromkeys(("Nr", "Preis", "Tag"), "text")
    assert rows[0]["Preis"] == "1.204,50" and rows[1]["Tag"] is None
    said = {"decimal_separator": ",", "dateformat": "%d.%m.%Y"}
    types, rows = table(path, said)
    assert types == {"Nr": "text", "Preis": "number", "Tag": "date"}
    assert rows[0] == {
        "text": "Der Hund\nschläft",
        "Nr": "A-1",
        "Preis": 1204.5,
        "Tag": "2024-12-31",
    }
    latin = write(tmp_path, "b.csv", GERMAN.encode("cp1252"))
    with refusal(r"csv: .*line 3: is not UTF-8; give encoding=cp1252"):
        table(latin, said)
    assert table(latin, {**said, "encoding": "cp1252"}) == (types, rows)


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["1", "-20"], "number", [1, -20]),
        (["1.5", "0.123", "2e3"], "number", [1.5, 0.123, 2000.0]),
        (["950", "1.200", "12.000"], "text", None),  # thousands, or decimals
        (["1.200", "2e3", "-1E-2"], "text", None),
        (["1.200", "2e3", "1.5"], "number", [1.2, 2000.0, 1.5]),
        (["2e3"], "number", [2000.0]),
        (["1,5"], "text", None),
        (["007"], "text", None),
        (["1234567890123456789"], "text", None),  # a float would lose digits
        (["true", "FALSE"], "truth", [True, False]),
        (["yes", "no"], "text", None),
        (
            ["2024-12-31", "2024-12-31T10:00:00+02:00"],
            "date",
            ["2024-12-31", "2024-12-31 08:00:00"],
        ),
        (["2024-13-31"], "text", None),
        (["31.12.2024"], "text", None),
        (["1", "x"], "text", None),
        (["1", ""], "number", [1, None]),
        (["", " "], "text", [None, None]),
        (["nan"], "text", None),
        (["1e999", "1"], "text", None),  # beyond the largest float
    ],
)
def test_a_column_has_one_type(cells, kind, values, tmp_path):
    lines = "".join(f'a,"{cell}"\n' for cell in cells)
    types, rows = table(write(tmp_path, "a.csv", f"text,x\n{lines}"))
    assert types == {"x": kind}
    assert [row["x"] for row in rows] == (cells if values is None else values)


@pytest.mark.parametrize(
    ("rows", "kind", "values"),
    [
        ([1, 2.5], "number", [1.0, 2.5]),
        ([True, False], "truth", [True, False]),
        (["12", "13"], "text", ["12", "13"]),  # a text is a text
        (["2024-01-02"], "date", ["2024-01-02"]),
        ([1, "x"], "text", ["1", "x"]),
        ([[1, {"a": 2}], None], "text", ['[1, {"a": 2}]', None]),
        ([float("nan"), 1], "number", [None, 1]),
        ([2**70], "text", [str(2**70)]),
        ([float("inf"), 1], "text", ["inf", "1"]),
    ],
)
def test_json_declares_its_types(rows, kind, values, tmp_path):
    lines = "\n".join(json.dumps({"text": "a", "x": value}) for value in rows)
    assert table(write(tmp_path, "a.jsonl", lines)) == (
        {"x": kind},
        [{"text": "a", "x": value} for value in values],
    )


def test_parquet_declares_its_types(tmp_path):
    day = datetime.datetime(2024, 1, 1, 10)
    columns = {"text": ["a"], "n": [1], "d": [day.date()], "t": [day], "b": [True], "l": [[1]]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    types, [row] = table(tmp_path / "a.parquet")
    assert list(types.values()) == ["number", "date", "date", "truth", "text"]
    assert list(row.values())[1:] == [1, "2024-01-01", "2024-01-01 10:00:00", True, "[1]"]


def test_a_number_that_a_table_cannot_hold_is_refused_not_lost(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {"text": ["a", "b"], "h": pa.array([1, 2**63], pa.uint64())}
    pq.write_table(pa.table(columns), path)
    with refusal(r"a\.parquet: row 2: 'h' is 9223372036854775808, not a.*write null"):
        table(path)
    assert table(path, skip_bad=True)[1] == [{"text": "a", "h": 1}]
    pq.write_table(pa.table({"text": ["a"], "h": [float("inf")]}), path)
    with refusal(r"row 1: 'h' is inf, not a finite number"):
        table(path)


def test_a_wide_column_is_not_a_deep_one(tmp_path):
    wide = {f"f{number}": [number] for number in range(150)}
    pq.write_table(pa.table({"text": ["a"], "wide": [wide]}), tmp_path / "a.parquet")
    types, [row] = table(tmp_path / "a.parquet")
    assert types["wide"] == "text" and row["text"] == "a"


@pytest.mark.parametrize(
    ("text", "csv", "said"),
    [
        ("Export vom 31.12.\nNr;text\n1;a\n2;b\n", "skip=1", "skip=1"),
        ("Export;;\nNr;text;x\n1;a;y\n", "skip=1", "give skip=1"),
        ("text|x;y,z\na|1;2,3\n", "delim=|", r"delim=; or delim=\|"),
        ("1,a\n2,b\n", "header=false", "header=false"),
        ("2023,text\n2,b\n", "header=true", "header=true"),
        ("x,text,x\n1,a,2\n", "header=false,skip=1", "header=false,skip=1"),
        ("text,x\na,1\nb,2,3\n", None, r"line 3: 3 columns, but the header has 2 \(text, x\)"),
        ("text\nHello, world\nfoo\n", None, "line 2: 2 columns"),
        ('text,x\na,1\n"b,2\n', None, "line 3: a quote is not closed"),
        (f"text,{'c' * 2000}\na,1\n", None, "a name of 2,000 characters in line 1"),
        ("text\ra\r", None, "carriage return"),
    ],
)
def test_what_is_not_certain_is_refused_with_what_to_type(text, csv, said, tmp_path):
    path = write(tmp_path, "a.csv", text)
    with refusal(said) as refused:
        table(path)
    assert "\n" not in str(refused.value)
    if csv is not None:
        fields = ColumnChoice("2" if "header=false" in csv else None)
        with open_rows(path, fields, csv=csv_options([csv])) as rows:
            assert next(rows.texts()) in ("a", "b")


def test_a_delimiter_that_the_names_alone_have_is_taken(tmp_path):
    for sign in ",;\t|":
        text = f"text{sign}x\na{sign}y\nb{sign}z\n"
        assert table(write(tmp_path, "a.csv", text))[1][1] == {"text": "b", "x": "z"}
    for sign in ";\t":
        text = f"sep={sign}\ntext{sign}x\na,b{sign}y\n"
        with refusal("give skip=1"):
            table(write(tmp_path, "b.csv", text))
    quoted = write(tmp_path, "c.tsv", 'text\tx\n"Hi" he said\ty\n')
    with refusal("give quote="):
        table(quoted)
    assert table(quoted, {"quote": ""})[1] == [{"text": '"Hi" he said', "x": "y"}]


def test_bad_rows_are_left_out_counted_and_told(tmp_path, notes):
    path = write(tmp_path, "a.csv", "text,x\na,1\nshort\nb,2\n" + "c,d,e\n" * 4)
    with refusal(r"line 3: 1 column.*skip_bad=True"):
        table(path, skip_bad=False)
    assert [row["text"] for row in table(path, skip_bad=True)[1]] == ["a", "b"]
    assert "left out 5 rows that cannot be read: line 3: 1 column" in notes.text
    assert notes.text.count("line ") == 3 and notes.text.rstrip().endswith("...")
    lines = '{"text": "a"}\n{broken\n{"text": "\\ud83d"}\n{"text": 3}\n[1]\n{"text": "b"}\n'
    path = write(tmp_path, "a.jsonl", lines)
    assert [row["text"] for row in table(path, skip_bad=True)[1]] == ["a", "b"]
    assert "4 rows that cannot be read" in notes.text
    path = write(tmp_path, "a.txt", b"one\n\xff\nthree\n")
    with open_rows(path, skip_bad=True) as rows:
        assert list(rows.texts()) == ["one", "", "three"]  # row i is line i


def test_a_row_keeps_its_number_when_rows_before_it_are_left_out(tmp_path):
    csv = write(tmp_path, "a.csv", "text,x\na,1\nshort\nb,2\nc,3\n")
    lines = '{"text": "a"}\n{broken\n{"text": 3}\n{"text": "b"}\n{"text": "c"}\n'
    jsonl = write(tmp_path, "a.jsonl", lines)
    for path, numbers in ((csv, [0, 2, 3]), (jsonl, [0, 3, 4])):
        with open_rows(path, skip_bad=True) as rows:
            assert [row["id"] for batch in rows for row in records(batch)] == numbers
        with open_rows(path, skip_bad=True, start=numbers[1]) as rows:
            assert [texts for _, texts in rows.numbered()] == [("b",), ("c",)]
    pairs = "sentence1,sentence2,score\na,b,1\na\nc,d,high\n"
    with refusal(r"p\.csv: row 3 has the score 'high'"):
        training_examples(write(tmp_path, "p.csv", pairs), layouts=[GRADED_PAIRS], skip_bad=True)


@pytest.mark.parametrize("end", ['51,"x"', '51",5,6', "51,x"])
def test_all_lines_of_a_bad_row_are_told(end, tmp_path, notes):
    lines = ["n,text", '1,"never closed', *(f"{number},x" for number in range(3, 51)), end]
    path = write(tmp_path, "a.csv", "\n".join(lines) + "\n")
    with refusal("lines 2 to 51: "):
        table(path)
    with open_rows(path, skip_bad=True, may_be_empty=True) as rows:
        assert list(rows.texts()) == []
    assert "left out 50 lines that cannot be read: lines 2 to 51: " in notes.text


def test_lists_within_json_are_named_by_a_path(tmp_path):
    chats = {"name": "x", "messages": [{"id": 1, "text": "Hi."}, {"id": 2, "text": "Bye."}]}
    path = write(tmp_path, "a.json", json.dumps(chats))
    with refusal(r"a\.json:messages\[\]\.text"):
        table(path)
    with open_rows(f"{path}:messages[].text", ColumnChoice()) as rows:
        assert [(row["id"], row["text"]) for batch in rows for row in records(batch)] == [
            ("1", "Hi."),
            ("2", "Bye."),
        ]
    lines = write(tmp_path, "a.jsonl", json.dumps({"n": {"t": "a"}, "m": [{"c": "x"}, {"c": "y"}]}))
    for column, texts in (("m[].c", ["x", "y"]), ("n.t", ["a"])):
        with open_rows(f"{lines}:{column}", ColumnChoice()) as rows:
            assert list(rows.texts()) == texts


def test_a_field_that_the_first_object_lacks_is_found(tmp_path):
    path = write(tmp_path, "late.json", '[{"n": 1}, {"n": 2, "text": "a"}]')
    with refusal(r"late\.json: row 1: 'text' is missing"), open_rows(path):
        pass
    with open_rows(path, skip_bad=True) as rows:
        assert list(rows.texts()) == ["a"]


def test_several_columns_are_one_text(tmp_path):
    path = write(tmp_path, "a.csv", "id,subject,body\n1,Lamp,It is dark.\n2,,No light.\n")
    with open_rows(f"{path}:subject,body", ColumnChoice()) as rows:
        assert list(rows.texts()) == ["Lamp It is dark.", "No light."]
    beir = write(tmp_path, "a.jsonl", '{"_id": "d", "title": "T", "text": "b"}\n')
    with open_rows(beir) as rows:
        assert list(rows.texts()) == ["T b"]


@given(st.dictionaries(st.sampled_from(["delim", "decimal_separator", "skip"]), st.none()))
def test_options_of_a_table_are_read_as_they_are_typed(names):
    values = {"delim": ",", "decimal_separator": ",", "skip": "3"}
    typed = ",".join(f"{name}={values[name]}" for name in names)
    if names:
        assert csv_options([typed]) == {name: values[name] for name in names}
        assert CsvOptions.of(csv_options([typed])).skip == (3 if "skip" in names else 0)


def test_wrong_options_are_refused():
    for given_options, said in (
        ({"delimiter": ";"}, "delim"),
        ({"skip": "x"}, "skip='x' is not allowed; it must be a whole number"),
        ({"decimal_separator": ";"}, "not allowed"),
    ):
        with refusal(said):
            CsvOptions.of(given_options)
    with refusal("NAME=VALUE"):
        csv_options(["semicolon"])
