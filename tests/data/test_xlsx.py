"""Workbooks: sheets and columns by name, the types of their cells, in every command."""

import zipfile
from datetime import date
from pathlib import Path

import pytest

from promptcli.data.input_files import split_columns
from promptcli.data.layouts import ColumnChoice
from promptcli.data.rows import open_rows
from promptcli.data.task_table import read_graded_pairs
from promptcli.data.training_data import sentences_with_column
from promptcli.errors import NotFoundError, UsageError
from tests.comparing import refusal
from tests.source_files import records
from tests.workbooks import write_workbook

PARCELS = [
    ["text", "day", "weight", "late", "price"],
    ["A parcel is late", date(2024, 12, 31), 1.25, True, "3,50 €"],
    [],
    ["A parcel came", date(2026, 1, 2), 3, False, "1.200,00 €"],
]
PAIRS = [
    ["sentence1", "sentence2", "score"],
    ["a cat", "a kitten", 5],
    ["a cat", "a ship", 0.5],
]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    pytest.importorskip("python_calamine")
    monkeypatch.chdir(tmp_path)
    write_workbook("t.xlsx", Parcels=PARCELS, **{"My pairs, 2024": PAIRS}, Empty=[])


@pytest.mark.parametrize(
    ("word", "column", "texts"),
    [
        ("t.xlsx:Parcels", "text", ["A parcel is late", "A parcel came"]),
        ("t.xlsx:Parcels:text", "text", ["A parcel is late", "A parcel came"]),
        ("t.xlsx:My pairs, 2024:sentence2", "sentence2", ["a kitten", "a ship"]),
        ("one.xlsx", "text", ["a cat"]),
        ("one.xlsx:One", "text", ["a cat"]),
    ],
)
def test_sheets_and_columns_are_named(word, column, texts):
    write_workbook("one.xlsx", One=[["text"], ["a cat"]], Empty=[])
    with open_rows(word) as rows:
        assert list(rows.texts()) == texts
        assert rows.columns["text"] == column


@pytest.mark.parametrize(
    ("word", "error", "said"),
    [
        ("t.xlsx", UsageError, "rows in 2 sheets: Parcels, My pairs, 2024; name one as t.xlsx:Par"),
        ("t.xlsx:Parcel:text", UsageError, "no sheet 'Parcel'.*Parcels.*did you mean"),
        ("t.xlsx:Parcels:txt", UsageError, "no column 'txt'.*did you mean text"),
        ("t.xlsx:Empty:", UsageError, "is empty"),
        ("none.xlsx:Parcels:text", (UsageError, NotFoundError), "none.xlsx"),
        ("broken.xlsx", UsageError, "cannot be read as a workbook.*CSV"),
        ("titled.xlsx:Parcels:note", UsageError, "names 1 of 2 columns.* give skip=1"),
    ],
)
def test_what_is_not_certain_is_refused(word, error, said):
    Path("broken.xlsx").write_bytes(Path("t.xlsx").read_bytes()[:900])
    write_workbook("titled.xlsx", Parcels=[["Export of May"], ["name", "note"], ["Ann", "good"]])
    with pytest.raises(error, match=said), open_rows(word) as rows:
        list(rows)


def test_a_title_is_skipped_and_all_sheets_are_read(tmp_path):
    write_workbook("titled.xlsx", Parcels=[["Export of May"], ["name", "note"], ["Ann", "good"]])
    with open_rows("titled.xlsx:Parcels:note", csv={"skip": 1}) as rows:
        assert list(rows.texts()) == ["good"]
    write_workbook("year.xlsx", Jan=[["text"], ["a"]], Feb=[["text"], ["b"], ["c"]])
    with open_rows("year.xlsx", csv={"sheets": "all"}) as rows:
        assert list(rows.texts()) == ["a", "b", "c"]


def test_cells_have_types():
    with open_rows("t.xlsx:Parcels", ColumnChoice(cells=True)) as rows:
        assert rows.types == {"day": "date", "weight": "number", "late": "truth", "price": "text"}
        [batch] = rows
        assert records(batch)[0] == {
            "text": "A parcel is late",
            "day": "2024-12-31",
            "weight": 1.25,
            "late": True,
            "price": "3,50 €",
            "id": 0,
        }


def test_pairs_and_maps_read_sheets():
    assert read_graded_pairs("t.xlsx:My pairs, 2024:sentence1,sentence2,score") == [
        ("a cat", "a kitten", 5),
        ("a cat", "a ship", 0.5),
    ]
    _, days = sentences_with_column("t.xlsx:Parcels", "day")
    assert days == ["2024-12-31", "2026-01-02"]
    assert split_columns("t.xlsx:My pairs, 2024:a,b") == ("t.xlsx", "My pairs, 2024:a,b")


def test_formulas_without_a_value_and_merged_cells_are_told(notes):
    write_workbook("far.xlsx", a=[["text"], ["a cat"], ["x"]])
    with zipfile.ZipFile("far.xlsx") as old, zipfile.ZipFile("f.xlsx", "w") as new:
        for part in old.namelist():
            text = old.read(part).replace(b"<is><t>x</t></is>", b"<f>A2</f>")
            merged = b'</sheetData><mergeCells count="1"><mergeCell ref="A2:B2"/></mergeCells>'
            new.writestr(part, text.replace(b"</sheetData>", merged))
    with open_rows("f.xlsx") as rows:
        assert next(rows.texts()) == "a cat"
    assert "1 formulas without a value" in notes.text and "1 merged" in notes.text


def test_a_workbook_that_would_fill_the_memory_is_refused(monkeypatch):
    write_workbook("far.xlsx", a=[["text"], ["a cat"]])
    for name, place in (("double", b'r="XFD1048576"'), ("single", b"r='XFD1048576'")):
        with zipfile.ZipFile("far.xlsx") as old, zipfile.ZipFile(f"{name}.xlsx", "w") as new:
            for part in old.namelist():
                new.writestr(part, old.read(part).replace(b'r="A2"', place))
        with refusal("cannot be read"), open_rows(f"{name}.xlsx") as rows:
            list(rows)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("promptcli.errors.missing_libraries", lambda *names: list(names))
    with refusal(r"\[xlsx\]"), open_rows("t.xlsx") as rows:
        list(rows)
