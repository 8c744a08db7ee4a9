"""Rows that cannot be read: the first is refused, or all are written to a file and blank."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from promptcli.data.bad_lines import bad_rows
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.rows import open_rows
from promptcli.errors import UsageError

#: Name of a file -> its content, the texts that are read, and number, beginning of the reason and
#: line of each bad row.
FILES = {
    "a.jsonl": (
        b'{"text": "one"}\n{"text": 1}\n\n{broken\n[1]\n{"other": "x"}\n{"text": "six"}\n',
        ["one", "", "", "", "", "", "six"],
        [
            (2, "'text' is 1; a sentence is text", '{"text": 1}'),
            (4, "malformed JSON: ", "{broken"),
            (5, "[1] is not a JSON object", "[1]"),
            (6, "no field 'text'; its fields: other", '{"other": "x"}'),
        ],
    ),
    "a.txt": (
        "eins\nzwei\0\ndrei: ä\n".encode() + b"a\xd0\n" + b"f\xc3\xbcnf\n",
        ["eins", "", "drei: ä", "", "fünf"],
        [(2, "a NUL byte", "zwei\0"), (4, "not UTF-8", "a\\xd0")],
    ),
    "a.csv": (
        b'text,n\none,1\n"two,2\nthree,3\n"four, and\nfour",4\nfive\n"a" b,6\nseven,7\n',
        ["one", "", "three", "four, and\nfour", "", "", "seven"],
        [
            (3, "',' expected after", '"two,2'),
            (7, "1 columns, but the header has 2 (text, n)", "five"),
            (8, "',' expected after", '"a" b,6'),
        ],
    ),
    "a.tsv": (
        b"text\tn\none\t1\ntwo\nthree\t3\n",
        ["one", "", "three"],
        [(3, "1 columns, but the header has 2", "two")],
    ),
    "a.json": (
        b'[{"text": "one"}, 2, "three", {"text": [1]}]',
        ["one", "", "three", ""],
        [(2, "2 is not a JSON object", "2"), (4, "'text' is [1]", '{"text": [1]}')],
    ),
    "open.csv": (
        b'text,n\none,1\n"two,2\nthree,3\n',
        ["one", "", "three"],
        [(3, "unexpected end of data", '"two,2')],
    ),
    "half.jsonl": (  # an emoji that was cut, in a sentence and in an id
        b'{"text": "one", "id": 0}\n{"text": "\\ud83d", "id": 1}\n{"text": "three", "id": 2}\n',
        ["one", "", "three"],
        [(2, "'text' holds half a surrogate pair", '{"text": "\\ud83d", "id": 1}')],
    ),
    "half.json": (
        b'[{"text": "one"}, {"text": "\\udc00"}, {"text": "three"}]',
        ["one", "", "three"],
        [(2, "'text' holds half a surrogate pair", '{"text": "\\udc00"}')],
    ),
    "half.txt": (
        "one\n\ud83d\nthree\n".encode("utf-16", "surrogatepass"),
        ["one", "", "three"],
        [(2, "not UTF-16", "\\ud83d")],
    ),
    "deep.jsonl": (
        b'{"text": "one"}\n' + b'{"text": ' + b"[" * 200 + b"]" * 200 + b"}\n",
        ["one", ""],
        [(2, "malformed JSON: it is nested deeper", '{"text": ' + "[" * 200 + "]" * 200 + "}")],
    ),
}

CELLS = ColumnChoice(cells=True)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def texts_of(name):
    with bad_rows("bad.jsonl") as bad, open_rows(name, bad=bad) as rows:
        batch = pa.Table.from_batches(rows)
    assert [*map(str, batch.column("id").to_pylist())] in (
        [*map(str, range(len(batch)))],
        ["0", "", "2"],
    )
    return batch.column("text").to_pylist()


def listed():
    return [json.loads(line) for line in Path("bad.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", FILES)
def test_bad_rows_are_listed_and_keep_their_numbers(name):
    content, texts, bad = FILES[name]
    Path(name).write_bytes(content)
    assert texts_of(name) == texts
    found = listed()
    assert [(row["file"], row["number"], row["line"]) for row in found] == [
        (name, number, line) for number, _, line in bad
    ]
    for row, (_, reason, _) in zip(found, bad, strict=True):
        assert row["reason"].startswith(reason)


def test_rows_of_parquet():
    pq.write_table(pa.table({"text": ["one", "a\0b", None]}), "a.parquet")
    assert texts_of("a.parquet") == ["one", "", ""]
    [row] = listed()
    assert (row["number"], row["line"]) == (2, '{"text": "a\\u0000b"}')


@pytest.mark.parametrize("name", FILES)
def test_without_a_file_the_first_is_refused_with_the_option(name):
    Path(name).write_bytes(FILES[name][0])
    hint = "; give `bad_lines` FILE to list such rows there and read the others$"
    with pytest.raises(UsageError, match=hint), bad_rows(None) as bad:
        with open_rows(name, bad=bad) as rows:
            list(rows)
    with pytest.raises(UsageError) as plain, open_rows(name) as rows:
        list(rows)
    assert "bad_lines" not in str(plain.value)


def test_only_a_file_of_bad_rows_is_replaced():
    Path("a.jsonl").write_bytes(FILES["a.jsonl"][0])
    texts_of("a.jsonl")
    Path("a.jsonl").write_text('{"text": "all is well"}\n')
    texts_of("a.jsonl")
    assert listed() == []
    texts_of("a.jsonl")
    with pytest.raises(UsageError, match=r"a\.jsonl: a file of something else; choose another"):
        with bad_rows("a.jsonl"):
            pass
    assert Path("a.jsonl").read_text() == '{"text": "all is well"}\n'


def test_a_block_that_fails_leaves_no_file():
    with pytest.raises(KeyError), bad_rows("bad.jsonl") as bad:
        bad.add("a.txt", "line", 1, "why", "text")
        raise KeyError
    assert not Path("bad.jsonl").exists()


def test_bad_rows_do_not_go_to_standard_output():
    with (
        pytest.raises(UsageError, match="is standard output, which has the results"),
        bad_rows("-"),
    ):
        pass


DEPTHS = [90, 99, *range(950, 990)]


def test_what_is_nested_deep_beside_a_sentence_is_read_or_refused(tmp_path):
    for depth in DEPTHS:
        nested = "[" * depth + "]" * depth
        Path("a.jsonl").write_text(f'{{"text": "one", "n": 1}}\n{{"text": "two", "n": {nested}}}\n')
        with bad_rows("bad.jsonl") as bad, open_rows("a.jsonl", CELLS, bad=bad) as rows:
            [batch] = rows
        assert batch.column("text").to_pylist() == ["one", "two" if depth < 100 else ""]
