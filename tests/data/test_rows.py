import errno
import gzip
import hashlib
import io
import json

import pyarrow as pa
import pytest

from promptcli.data import input_files, tables
from promptcli.data.input_files import STANDARD
from promptcli.data.rows import open_rows, windows
from promptcli.errors import NotFoundError
from tests.source_files import assert_unreadable, read, texts, write, write_parquet

ODD = "a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g\rh"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", f"{ODD}\nnext\n", [(0, ODD), (1, "next")]),  # only a newline ends a line
        ("a.txt", "\ufeffone\n\ufefftwo", [(0, "one"), (1, "\ufefftwo")]),
        *(
            (name, "one\ntwo\n", [(0, "one"), (1, "two")])
            for name in ("a.text", "corpus.en", "corpus", "a.TXT")
        ),
        (
            "a.csv",
            'id,text\r\n1,"a, ""b""\r\nc"\r\n\r\n3,plain\r\n',
            [("1", 'a, "b"\r\nc'), ("3", "plain")],
        ),
        (
            "a.csv",
            "text\none\n\nthree\n",
            [(0, "one"), (1, ""), (2, "three")],
        ),
        ("a.csv", "id,words\nk,one\n", [("k", "one")]),  # the only one beside the id
        (
            "a.jsonl",
            '{"id": 7, "text": "a"}\n{"text": "b\\nc", "id": "x"}\n',
            [("7", "a"), ("x", "b\nc")],
        ),
        ("a.jsonl", '{"sentence": "one", "n": 1}', [(0, "one")]),
        ("a.ndjson", '{"id": 1, "content": "one"}', [("1", "one")]),
    ],
)
def test_texts_are_read_as_they_stand_in_the_file(name, content, expected, tmp_path):
    assert read(write(tmp_path, name, content)) == expected


def test_a_line_of_a_megabyte_is_read(tmp_path):
    long = "word " * 200_000
    assert texts(write(tmp_path, "a.txt", f"one\n{long}\nthree")) == ["one", long, "three"]
    assert texts(write(tmp_path, "a.csv", f"text\none\n{long}\nthree\n")) == ["one", long, "three"]
    assert texts(write(tmp_path, "a.jsonl", json.dumps({"text": long}))) == [long]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "MAX_LINE_CHARACTERS", 1 << 20)
    assert_unreadable(
        write(tmp_path, "a.txt", b"one\n" + b"x" * (1 << 21)), "a.txt: line 2 is longer than 1 MiB"
    )
    monkeypatch.setattr(tables, "MAX_LINE_CHARACTERS", 1 << 20)
    assert_unreadable(
        write(tmp_path, "a.json", "[" + "1,\n" * (1 << 19)),
        "a.json: a JSON value of more than",
        "jq -c",
    )


def test_missing_files_and_folders_are_refused(tmp_path):
    for name in ("none.txt", "none.parquet"):
        assert_unreadable(tmp_path / name, name, "No such file", error=NotFoundError)
    assert_unreadable(tmp_path / ("x" * 300), "too long", error=NotFoundError)
    for name in ("folder", "folder.parquet"):
        (tmp_path / name).mkdir()
        assert_unreadable(tmp_path / name, "is a folder")


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        (
            "a.txt",
            "one\nСобака бежит.\n".encode("cp1251"),
            ["a.txt: line 2: is not UTF-8", "encoding=cp1252"],
        ),
        ("a.csv", "text\nCafé\n".encode("utf-16"), ["line 1: is not UTF-8", "utf-16"]),
        ("a.docx", b"PK\x03\x04", ["an Office document", "CSV"]),
        ("a.doc", b"\xd0\xcf\x11\xe0", ["an old Office document", "CSV"]),
        ("a.rtf", "{\\rtf1 Hello}", ["an RTF document"]),
        ("a.pdf", "%PDF-1.4\n1 0 obj\n", ["a PDF"]),
        ("a.jpg", b"\xff\xd8\xff\xe0", ["an image"]),
        ("a.png", b"\x89PNG\r\n", ["an image"]),
        ("a.data", b"PAR1\0", ["Parquet", ".parquet"]),
        ("a.txt", "café\n".encode("utf-16-le"), ["line 1: is not UTF-8", "utf-16"]),
        ("a.txt", "one\ntwo\0\n", ["a.txt: line 2: holds a NUL byte"]),
        ("a.jsonl", '{"text": "a\\u0000"}', ["line 1", "NUL"]),
        *(
            (name, "", [name, "empty"])
            for name in ("a.txt", "a.txt.gz", "a.jsonl", "a.csv", "a.tsv")
        ),
        ("a.csv", "id,text\n", ["empty"]),  # a header without rows
        ("a.txt", gzip.compress(b"one", mtime=0), ["gzip data", ".gz"]),
        # JSONL
        ("a.jsonl", '{"text": "one"}\n{"text": "cut', ["a.jsonl: line 2: malformed JSON"]),
        ("a.jsonl", '{"text": ' * 100_000, ["line 1: malformed JSON"]),
        ("a.json", "[" * 100_000, ["malformed JSON"]),
        ("a.json", '["one", 2]', ["row 2", "not a JSON object"]),
        ("a.jsonl", '{"text": 3}', ["'text' is 3"]),
        ("a.jsonl", '{"text": "one"}\n{"body": "x"}', ["line 2", "'text' is missing"]),
        ("a.jsonl", '{"text": "\\ud83d"}', ["surrogate"]),
        ("a.jsonl", '{"id": [1], "text": "a"}', ["line 1", "'id' is [1]"]),
        ("a.jsonl", '{"id": 1, "text": "a"}\n{"text": "a"}', ["line 2", "'id' is missing"]),
        (
            "a.jsonl",
            '{"id": "\\ud800", "text": "a"}',
            ["line 1", "'id' holds half a surrogate pair"],
        ),
        # CSV and TSV
        ("b.csv", "text,text\n1,2\n", ["2 columns 'text'", "header=false"]),
        (
            "a.csv",
            "id,text\n1,one\n2,two, and more\n",
            ["a.csv: line 3: 3 columns", "header has 2"],
        ),
        ("a.tsv", "id\ttext\n1\tone\n2\n", ["a.tsv: line 3: 1 column,"]),
        ("a.csv", 'text\nok\n"never closed\nmore\n', ["a.csv: lines 3 to 4"]),
        ("a.csv", 'text\n"one" two\n', ["a.csv: line 2"]),
        ("b.parquet", "no parquet", ["b.parquet is not a whole Parquet file"]),
    ],
)
def test_malformed_files_are_named_with_line_and_cure(tmp_path, name, content, parts):
    assert_unreadable(write(tmp_path, name, content), *parts)


def test_damaged_gzip_is_refused(tmp_path):
    sound = gzip.compress("".join(f"line {i}\n" for i in range(5000)).encode())
    damaged = {
        "cut": sound[:-20],
        "text": b"no gzip at all",
        "bad": sound[:200] + b"\xff\xff\xff\xff" + sound[204:],
    }
    for name, content in damaged.items():
        (tmp_path / f"{name}.txt.gz").write_bytes(content)
        assert_unreadable(tmp_path / f"{name}.txt.gz", "damaged or cut-off .gz data", "line")


def test_standard_input_is_text_or_with_a_field_json_lines():
    assert texts(STANDARD, stdin=b"one\ntwo") == ["one", "two"]
    found = read(
        STANDARD, text="body", stdin=b'{"id": "a", "body": "one"}\n{"id": "b", "body": "two"}'
    )
    assert found == [("a", "one"), ("b", "two")]
    assert_unreadable(STANDARD, "standard input is empty", stdin=b"")
    assert_unreadable(STANDARD, "standard input: line 1", stdin=b"\xff")


def test_hash_is_of_the_bytes_in_the_file_and_total_is_known_if_it_is_cheap(tmp_path):
    for name, content, total in (
        ("a.txt", "text\r\none\n\ntwo", 4),
        ("b.txt", "one\n\n", 2),
        ("a.csv", "text\none\ntwo\n", 3),  # about
        ("a.txt.gz", "one\n", None),
        ("a.parquet", None, 2),
    ):
        path = (
            write(tmp_path, name, content)
            if content
            else write_parquet(tmp_path, {"text": ["one", "two"]})
        )
        with open_rows(path) as source:
            assert source.total() == total
            list(source)
            assert source.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()
    with open_rows(io.BytesIO(b"one\ntwo\n")) as source:
        list(source)
        assert (
            source.sha256() == hashlib.sha256(b"one\ntwo\n").hexdigest() and source.total() is None
        )


def test_the_right_field_is_asked_for(tmp_path):
    path = write(tmp_path, "a.csv", "a,b\n1,2\n")
    assert_unreadable(path, "a.csv", "text_field", "columns: a, b")
    assert_unreadable(path, "text_field: ", "'text'", "columns: a, b", text="text")
    assert_unreadable(path, "id_field: ", "'key'", "columns: a, b", text="a", identifier="key")
    assert_unreadable(write(tmp_path, "a.txt", "one\n"), "has no columns", text="text")
    assert read(path, "b", "a") == [("1", "2")]
    assert read(write(tmp_path, "d.jsonl", '{"a": "one", "b": "k"}'), "a", "b") == [("k", "one")]


@pytest.mark.parametrize(
    ("rows", "size", "lengths"),
    [(4, 1 << 20, [4, 4, 2]), (100, 2500, [3, 3, 3, 1]), (2, 1, [1] * 10)],
)
def test_windows_have_at_most_so_many_rows_and_end_when_full(rows, size, lengths):
    lines = [f"{number:01000}" for number in range(10)]
    batches = [{"id": [0], "text": [line]} for line in lines]
    found = list(windows(batches, rows, size))
    assert [len(batch["text"]) for batch in found] == lengths
    assert [text for batch in found for text in batch["text"]] == lines


def test_parquet_is_read_in_batches_of_any_text_type(tmp_path):
    many = [f"sentence {i}" for i in range(10_000)]
    path = write_parquet(
        tmp_path,
        {"id": list(range(5, 10_005)), "text": many, "other": [0] * 10_000},
        row_group_size=3000,
    )
    assert read(path) == [(str(i + 5), many[i]) for i in range(10_000)]
    assert texts(write_parquet(tmp_path, {"s": pa.array(["a", "b"]).dictionary_encode()})) == [
        "a",
        "b",
    ]
    assert texts(write_parquet(tmp_path, {"s": pa.array(["a", "b"], pa.large_string())})) == [
        "a",
        "b",
    ]


def test_a_missing_text_is_a_blank_row(tmp_path):
    assert texts(write_parquet(tmp_path, {"text": ["a", None, "b"]})) == ["a", "", "b"]
    path = tmp_path / "gaps.jsonl"
    path.write_text('{"text": "a"}\n{"text": null}\n')
    assert texts(path) == ["a", ""]


def test_wrong_parquet_is_refused(tmp_path):
    for columns, *parts in (
        ({"text": [1, 2]}, "row 1", "'text' is 1"),
        ({"a": [1], "b": ["x"]}, "text_field", "columns: a, b"),
        ({"text": pa.array([], pa.string())}, "empty"),
        (
            {"text": ["a"], "id": pa.array([2**62], pa.timestamp("us"))},
            "column 'id' of",
        ),  # beyond the year 9999
        ({"text": ["a"], "id": pa.array([2**31 - 1], pa.date32())}, "column 'id' of"),
    ):
        assert_unreadable(write_parquet(tmp_path, columns), *parts)
    sound = write_parquet(tmp_path, {"text": ["a"] * 9999}).read_bytes()
    assert_unreadable(
        write(tmp_path, "c.parquet", sound[:-9]), "c.parquet is not a whole Parquet file"
    )


def test_a_full_disk_is_not_blamed_on_the_input(tmp_path):
    path = write_parquet(tmp_path, {"text": ["a"]})
    with pytest.raises(OSError, match="No space left"), open_rows(path):
        raise OSError(errno.ENOSPC, "No space left on device", "vectors.npy")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "name,x\none,1\n"),
        ("a.tsv", "name\tx\none\t1\n"),
        ("a.jsonl", '{"name": "one", "x": 1}\n'),
        ("a.parquet", ""),
    ],
)
def test_one_column_may_be_id_and_text(name, content, tmp_path):
    path = (
        write(tmp_path, name, content)
        if content
        else write_parquet(tmp_path, {"name": ["one"], "x": [1]})
    )
    assert read(path, "name", "name") == [("one", "one")]
