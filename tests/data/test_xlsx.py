"""Workbooks: sheets and columns by name, the types of their cells, in every command."""

import zipfile
from datetime import date, datetime
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

import promptcli as pc
from promptcli.data import xlsx
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.file_arguments import split_columns
from promptcli.data.rows import open_rows
from promptcli.data.sources import sentences_with_column
from promptcli.data.task_table import read_graded_pairs
from promptcli.errors import NotFoundError, UsageError

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"


def cell(place, value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return f'<c r="{place}" t="b"><v>{int(value)}</v></c>'
    if isinstance(value, date):
        days = (datetime(value.year, value.month, value.day) - datetime(1899, 12, 30)).days
        return f'<c r="{place}" s="1"><v>{days}</v></c>'
    if isinstance(value, str):
        return f'<c r="{place}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'
    return f'<c r="{place}"><v>{value}</v></c>'


def write_workbook(path, **sheets):
    """Write sheets, each a list of rows."""
    names = list(sheets)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        types = "".join(
            f'<Override PartName="/xl/worksheets/sheet{number}.xml" ContentType="application/vnd.'
            'openxmlformats-officedocument.spreadsheetml.worksheet+xml"/>'
            for number in range(1, len(names) + 1)
        )
        archive.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{PACKAGE}/content-types"><Default Extension="rels" ContentType='
            '"application/vnd.openxmlformats-package.relationships+xml"/><Override PartName='
            '"/xl/workbook.xml" ContentType="application/vnd.openxmlformats-officedocument.'
            f'spreadsheetml.sheet.main+xml"/>{types}</Types>',
        )
        archive.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{PACKAGE}/relationships"><Relationship Id="rId1" '
            f'Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        )
        listed = "".join(
            f'<sheet name="{escape(name)}" sheetId="{number}" r:id="rId{number}"/>'
            for number, name in enumerate(names, 1)
        )
        archive.writestr(
            "xl/workbook.xml",
            f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>{listed}</sheets></workbook>',
        )
        links = "".join(
            f'<Relationship Id="rId{number}" Type="{OFFICE}/worksheet" '
            f'Target="worksheets/sheet{number}.xml"/>'
            for number in range(1, len(names) + 1)
        )
        styles = f'<Relationship Id="rId99" Type="{OFFICE}/styles" Target="styles.xml"/>'
        archive.writestr(
            "xl/_rels/workbook.xml.rels",
            f'<Relationships xmlns="{PACKAGE}/relationships">{links}{styles}</Relationships>',
        )
        archive.writestr(
            "xl/styles.xml",
            f'<styleSheet xmlns="{MAIN}"><cellXfs count="2"><xf numFmtId="0"/>'
            '<xf numFmtId="14" applyNumberFormat="1"/></cellXfs></styleSheet>',
        )
        for number, rows in enumerate(sheets.values(), 1):
            body = ""
            for row, values in enumerate(rows, 1):
                cells = (cell(f"{chr(65 + column)}{row}", it) for column, it in enumerate(values))
                body += f'<row r="{row}">{"".join(cells)}</row>'
            archive.writestr(
                f"xl/worksheets/sheet{number}.xml",
                f'<worksheet xmlns="{MAIN}"><sheetData>{body}</sheetData></worksheet>',
            )


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
        ("t.xlsx", "text", ["A parcel is late", "", "A parcel came"]),
        ("t.xlsx:text", "text", ["A parcel is late", "", "A parcel came"]),
        ("t.xlsx:Parcels", "text", ["A parcel is late", "", "A parcel came"]),
        ("t.xlsx:Parcels:text", "text", ["A parcel is late", "", "A parcel came"]),
        ("t.xlsx:My pairs, 2024:sentence2", "sentence2", ["a kitten", "a ship"]),
    ],
)
def test_sheets_and_columns_are_named(word, column, texts):
    with open_rows(word) as rows:
        assert list(rows.texts()) == texts
        assert rows.columns["text"] == column


@pytest.mark.parametrize(
    ("word", "error", "said"),
    [
        ("t.xlsx:Parcel:text", UsageError, "no sheet 'Parcel'.*Parcels.*did you mean"),
        ("t.xlsx:Parcels:txt", UsageError, "no column 'txt'.*did you mean text"),
        ("t.xlsx:Empty:", UsageError, "is empty"),
        ("none.xlsx:Parcels:text", (UsageError, NotFoundError), "none.xlsx"),
        ("broken.xlsx", UsageError, "not a whole XLSX file.*CSV"),
    ],
)
def test_what_is_not_there_is_said(word, error, said):
    Path("broken.xlsx").write_bytes(Path("t.xlsx").read_bytes()[:900])
    with pytest.raises(error, match=said), open_rows(word) as rows:
        list(rows)


def test_a_title_above_the_names_of_the_columns_is_thought_of():
    write_workbook("titled.xlsx", Parcels=[["Export of May"], ["name", "note"], ["Ann", "good"]])
    with pytest.raises(UsageError, match="remove the lines above"), open_rows("titled.xlsx:note"):
        pass


def test_conditions_read_the_types_of_the_file():
    encoder = pc.load("static-avg")
    for condition, texts in {
        "day >= '2026-01-01'": ["A parcel came"],
        "weight < 2 and late": ["A parcel is late"],
        "price > 1000": ["A parcel came"],
    }.items():
        found = pc.search("parcel", "t.xlsx", model=encoder, where=condition)
        assert [line.text for line in found] == texts
    built = pc.SentenceIndex.build("t.xlsx:Parcels:text", encoder)
    synced = pc.SentenceIndex.sync("synced", ["t.xlsx:Parcels:text"], model=encoder).index
    for index in (built, synced):
        [hit] = index.search("parcel", where="price > 1000")
        assert hit.columns == {"day": "2026-01-02", "weight": 3, "late": False, "price": 1200}


def test_pairs_and_maps_read_sheets():
    assert read_graded_pairs("t.xlsx:My pairs, 2024:sentence1,sentence2,score") == [
        ("a cat", "a kitten", 5),
        ("a cat", "a ship", 0.5),
    ]
    _, days = sentences_with_column("t.xlsx", "day")
    assert days == ["2024-12-31", "", "2026-01-02"]


def test_a_sheet_stands_before_the_first_column():
    assert split_columns("t.xlsx:My pairs, 2024:a,b") == ("t.xlsx", ("My pairs, 2024:a", "b"))
    choice = ColumnChoice(text="Parcels:text")
    assert choice.of_sheet(["Parcels"]) == ("Parcels", ColumnChoice(text="text"))


def test_a_workbook_that_would_fill_the_memory_is_refused(monkeypatch):
    write_workbook("far.xlsx", a=[["text"], ["a cat"]])
    with zipfile.ZipFile("far.xlsx") as old, zipfile.ZipFile("bomb.xlsx", "w") as new:
        for part in old.namelist():
            new.writestr(part, old.read(part).replace(b'r="A2"', b'r="XFD1048576"'))
    with pytest.raises(UsageError, match="too far apart"), open_rows("bomb.xlsx") as rows:
        list(rows)
    monkeypatch.setattr(xlsx, "_UNPACKED", 100)
    with pytest.raises(UsageError, match="unpacks to"), open_rows("t.xlsx") as rows:
        list(rows)


def test_without_the_extra_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr("promptcli.errors.missing_libraries", lambda *names: list(names))
    with pytest.raises(UsageError, match=r"\[xlsx\]"), open_rows("t.xlsx") as rows:
        list(rows)
