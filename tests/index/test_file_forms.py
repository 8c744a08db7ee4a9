"""A file has one form, text or table, for every command that reads sentences."""

import bz2
import gzip
import io
import json

import pytest

import promptcli as pc
from promptcli.errors import NoColumnError
from promptcli.index.stored import load

TABLE = "text\tyear\nA cat sleeps.\t1999\nA dog barks.\t2005\n"
JSON = '{"text": "A cat sleeps.", "year": 1999}\n{"text": "A dog barks.", "year": 2005}\n'
ROWS = ["A cat sleeps.", "A dog barks."]
PROSE = "A cat sleeps.\nA dog\tbarks\tagain.\nIt rains.\n"
LINES = PROSE.splitlines()
INDENTED = "\tA cat sleeps.\n\tA dog barks.\n"
PIECES = [line.strip() for line in INDENTED.splitlines()]
MARKDOWN = "| text | year |\n| A cat. | 1999 |\n| A dog. | 2005 |\n"


@pytest.fixture(scope="module")
def encoder():
    return pc.load("static-avg")


def texts_of(command, file, encoder, folder):
    """Return the texts that a command reads, in order."""
    index = folder / "index"
    if command == "embed":
        stream = io.BytesIO()
        pc.embed(file, stream, encoder)
        return [json.loads(line)["text"].strip() for line in stream.getvalue().splitlines()]
    if command == "search":
        lines = pc.search("A cat", [file], model=encoder, rows="lines")
        return [line.text.strip() for line in sorted(lines, key=lambda line: line.line)]
    if command == "build":
        pc.build_index(file, index, encoder, rows="lines")
    else:
        pc.sync_index(index, [file], encoder, rows="lines")
    return [text.strip() for text in load(index).index.labels.column("text").to_pylist()]


@pytest.mark.parametrize("command", ["embed", "search", "build", "sync"])
@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("tab.txt", TABLE, ROWS),
        ("tab.log.gz", TABLE, ROWS),
        ("objects.txt", JSON, ROWS),
        ("objects.txt.bz2", JSON, ROWS),
        ("objects", JSON, ROWS),
        ("prose.txt", PROSE, LINES),
        ("prose.txt.gz", PROSE, LINES),
        ("indented.txt", INDENTED, PIECES),
        ("table.md", MARKDOWN, MARKDOWN.splitlines()),
        ("objects.md", JSON, JSON.splitlines()),
        ("table.rst.gz", TABLE, TABLE.splitlines()),
    ],
)
def test_every_command_reads_the_same_rows(command, name, content, expected, encoder, tmp_path):
    file = tmp_path / name
    pack = {".gz": gzip.compress, ".bz2": bz2.compress}.get(file.suffix, bytes)
    file.write_bytes(pack(content.encode()))
    assert texts_of(command, file, encoder, tmp_path) == expected


@pytest.mark.parametrize("command", ["embed", "build"])
@pytest.mark.parametrize(("content", "expected"), [(JSON, ROWS), (PROSE, LINES), (TABLE, ROWS)])
def test_standard_input_has_the_form_of_its_head(command, content, expected, encoder, tmp_path):
    stream = io.BytesIO(content.encode())
    assert texts_of(command, stream, encoder, tmp_path) == expected


@pytest.mark.parametrize("command", ["embed", "search", "build", "sync"])
def test_a_named_table_without_a_column_of_sentences_is_refused(command, encoder, tmp_path):
    file = tmp_path / "values.txt"
    file.write_text("red\tgreen\nblue\tgrey\n")
    with pytest.raises(NoColumnError, match=r"values\.txt"):
        texts_of(command, file, encoder, tmp_path)
    texts = texts_of(command, f"{file}:2", encoder, tmp_path)
    assert texts == ["green", "grey"]


def test_no_text_of_a_folder_is_lost_because_it_looks_like_a_table(encoder, tmp_path, caplog):
    caplog.set_level("INFO", logger="promptcli")
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "values.txt").write_text("red\tgreen\nblue\tgrey\n")
    (folder / "tab.txt").write_text(TABLE)
    (folder / "app.log").write_text('{"level": 1, "said": "A cat"}\n')
    lines = pc.search("A cat", [folder], model=encoder, rows="lines")
    assert sorted(line.text for line in lines) == [
        "A cat sleeps.",
        "A dog barks.",
        "blue\tgrey",
        "red\tgreen",
        '{"level": 1, "said": "A cat"}',
    ]
    assert "tab.txt: read as a table" in caplog.text
    assert "values.txt: read" not in caplog.text


def test_a_condition_chooses_the_rows_of_a_table_in_a_text_and_the_lines_of_a_text(
    encoder, tmp_path
):
    (tmp_path / "tab.txt").write_text(TABLE)
    (tmp_path / "prose.txt").write_text(PROSE)
    [row] = pc.search("A cat", [tmp_path / "tab.txt"], model=encoder, where="year > 2000")
    assert row.text == "A dog barks."
    [line] = pc.search(
        "A cat", [tmp_path / "prose.txt"], model=encoder, rows="lines", where="line > 2"
    )
    assert line.text == "It rains."
