import gzip
import hashlib
import io
import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcli.data import files
from promptcli.data.files import STANDARD
from promptcli.data.rows import open_rows, windows
from promptcli.errors import NotFoundError, PromptcliError
from tests.reading import fails, parquet, read, texts, write

# --- plain text


ANY_LINE = st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=20).filter(
    lambda line: not line.endswith("\r")
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(ANY_LINE, min_size=1).filter(lambda lines: lines != [""]), st.sampled_from(["\n", "\r\n"]), st.booleans()
)
def test_any_lines_come_back_row_by_row(tmp_path_factory, content, ending, last_ended):
    content[0] = content[0].removeprefix("\ufeff")
    data = ending.join(content) + (ending if last_ended or not content[-1] else "")
    if not data:
        return
    path = write(tmp_path_factory.mktemp("text"), "a.txt", data)
    assert read(path) == [(row, line) for row, line in enumerate(content)]


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory, data):
    path = write(tmp_path_factory.mktemp("bytes"), "a.txt", data)
    for name in ("a.txt", "a.jsonl", "a.csv", "a.tsv", "a.parquet", "a.txt.gz"):
        try:
            read(path.rename(path.with_name(name)))
        except PromptcliError as error:
            assert "\n" not in str(error) and name in str(error)
        path = path.with_name(name)


def test_only_newline_ends_a_line(tmp_path):
    odd = "a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g\rh"
    assert texts(write(tmp_path, "a.txt", f"{odd}\nnext\n")) == [odd, "next"]


def test_blank_lines_keep_their_rows(tmp_path):
    assert texts(write(tmp_path, "a.txt", "one\n\n  \nfour\n\n")) == ["one", "", "  ", "four", ""]


def test_blank_lines_can_be_left_out_and_the_others_numbered(tmp_path):
    path = write(tmp_path, "a.txt", "\none\n\n \u3000\t\ntwo\n\n")
    with open_rows(path, skip_blank=True) as rows:
        assert [batch.to_pylist() for batch in rows] == [[{"text": "one", "id": 0}, {"text": "two", "id": 1}]]
    with (
        pytest.raises(PromptcliError, match="is empty"),
        open_rows(write(tmp_path, "b.txt", "\n\n"), skip_blank=True),
    ):
        pass


def test_byte_order_mark_is_dropped_at_the_start_only(tmp_path):
    assert texts(write(tmp_path, "a.txt", "\ufeffone\n\ufefftwo")) == ["one", "\ufefftwo"]


def test_a_line_of_a_megabyte(tmp_path):
    long = "word " * 200_000
    assert texts(write(tmp_path, "a.txt", f"one\n{long}\nthree")) == ["one", long, "three"]
    assert texts(write(tmp_path, "a.csv", f"text\none\n{long}\nthree\n")) == ["one", long, "three"]
    assert texts(write(tmp_path, "a.jsonl", json.dumps({"text": long}))) == [long]


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_LINE", 1 << 20)
    fails(write(tmp_path, "a.txt", b"one\n" + b"x" * (1 << 21)), "a.txt: line 2 is longer than 1 MiB")


@pytest.mark.parametrize("name", ["a.text", "corpus.en", "corpus", "a.TXT"])
def test_an_unknown_extension_is_plain_text(tmp_path, name):
    assert texts(write(tmp_path, name, "one\ntwo\n")) == ["one", "two"]


def test_missing_file(tmp_path):
    fails(tmp_path / "none.txt", "none.txt", "No such file", error=NotFoundError)
    fails(tmp_path / "none.parquet", "none.parquet", "No such file", error=NotFoundError)
    fails(tmp_path / ("x" * 300), "too long", error=NotFoundError)


@pytest.mark.parametrize("name", ["folder", "folder.parquet"])
def test_folder_for_file(tmp_path, name):
    (tmp_path / name).mkdir()
    fails(tmp_path / name, "is a folder")


def test_wrong_encoding_names_line_byte_and_cure(tmp_path):
    path = write(tmp_path, "a.txt", b"one\ncaf\xe9 au lait\n")
    fails(path, "a.txt: line 2: not UTF-8", "iconv -f LATIN1")
    fails(write(tmp_path, "b.txt", "café\n".encode("utf-16")), "line 1: UTF-16", "iconv -f UTF-16")
    fails(write(tmp_path, "c.txt", "café\n".encode("utf-16-le")), "line 1", "NUL", "iconv -f UTF-16")
    fails(write(tmp_path, "d.csv", b"text\ncaf\xe9\n"), "d.csv: line 2")


def test_nul_byte(tmp_path):
    fails(write(tmp_path, "a.txt", b"one\ntwo\0\n"), "a.txt: line 2: a NUL byte")
    fails(write(tmp_path, "a.jsonl", b'{"text": "a\\u0000"}'), "line 1", "NUL")


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl", "a.csv", "a.tsv"])
def test_empty_file(tmp_path, name):
    fails(write(tmp_path, name, ""), name, "empty")


def test_a_header_without_rows_is_empty(tmp_path):
    fails(write(tmp_path, "a.csv", "id,text\n"), "empty")


def test_plain_text_has_no_fields(tmp_path):
    fails(write(tmp_path, "a.txt", "one\n"), "has no fields", text="text")


# --- gzip, standard input, hash, total


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", "one\ntwo"), ("a.jsonl", '"text"'), ("a.csv", "text\none\ntwo"), ("a.tsv", "text\none\ntwo")],
)
def test_gzip(tmp_path, name, content):
    if name == "a.jsonl":
        content = '{"text": "one"}\n{"text": "two"}\n'
    assert texts(write(tmp_path, f"{name}.gz", content)) == ["one", "two"]


def test_damaged_gzip(tmp_path):
    whole = gzip.compress("".join(f"line {i}\n" for i in range(5000)).encode())
    (tmp_path / "cut.txt.gz").write_bytes(whole[:-20])
    (tmp_path / "text.txt.gz").write_bytes(b"no gzip at all")
    (tmp_path / "bad.txt.gz").write_bytes(whole[:200] + b"\xff\xff\xff\xff" + whole[204:])
    for name in ("cut", "text", "bad"):
        fails(tmp_path / f"{name}.txt.gz", "damaged or cut-off gzip", "line")


def test_gzip_without_its_extension_is_said(tmp_path):
    (tmp_path / "a.txt").write_bytes(gzip.compress(b"one"))
    fails(tmp_path / "a.txt", "gzip data", "gunzip")


def test_standard_input_is_text_or_with_a_field_json_lines():
    assert texts(STANDARD, stdin=b"one\ntwo") == ["one", "two"]
    found = read(STANDARD, text="body", stdin=b'{"id": "a", "body": "one"}\n{"id": "b", "body": "two"}')
    assert found == [("a", "one"), ("b", "two")]
    fails(STANDARD, "standard input is empty", stdin=b"")
    fails(STANDARD, "standard input: line 1", stdin=b"\xff")


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.csv"])
def test_hash_is_of_the_bytes_in_the_file(tmp_path, name):
    path = write(tmp_path, name, "text\r\none\n\ntwo")
    with open_rows(path) as source:
        list(source)
        assert source.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_hash_of_standard_input_and_parquet(tmp_path):
    with open_rows(STANDARD, stdin=io.BytesIO(b"one\ntwo\n")) as source:
        list(source)
        assert source.sha256() == hashlib.sha256(b"one\ntwo\n").hexdigest()
        assert source.total() is None
    path = parquet(tmp_path, {"text": ["one", "two"]})
    with open_rows(path) as source:
        assert source.total() == 2
        assert source.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("name", "content", "total"),
    [("a.txt", "one\ntwo", 2), ("a.txt", "one\n\n", 2), ("a.csv", "text\none\ntwo\n", 2), ("a.txt.gz", "one\n", None)],
)
def test_total_where_it_is_cheap(tmp_path, name, content, total):
    with open_rows(write(tmp_path, name, content)) as source:
        assert source.total() == total


# --- JSONL


def test_jsonl_fields_and_ids(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"id": 7, "text": "one"}\n{"text": "two\\nlines", "id": "x"}\n')
    assert read(path) == [("7", "one"), ("x", "two\nlines")]
    assert read(write(tmp_path, "b.jsonl", '{"sentence": "one", "n": 1}')) == [(0, "one")]
    assert read(write(tmp_path, "c.ndjson", '{"id": 1, "content": "one"}')) == [("1", "one")]
    assert read(write(tmp_path, "d.jsonl", '{"a": "one", "b": "k"}'), "a", "b") == [("k", "one")]


def test_jsonl_blank_lines_keep_their_rows(tmp_path):
    assert read(write(tmp_path, "a.jsonl", '\n{"text": "b"}\n\n{"text": "d"}\n')) == [
        (0, ""), (1, "b"), (2, ""), (3, "d"),
    ]  # fmt: skip
    assert [identifier for identifier, _ in read(write(tmp_path, "b.jsonl", '\n{"text": "b", "id": "i"}\n\n'))] == [
        "",
        "i",
        "",
    ]
    assert texts(write(tmp_path, "c.jsonl", "\n\n")) == ["", ""]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"text": "cut', ["malformed JSON"]),
        ("[" * 100_000, ["malformed JSON"]),
        ('["one"]', ["not a JSON object"]),
        ('{"text": 3}', ["'text' is 3", "a sentence is text"]),
        ('{"text": null}', ["'text' is None"]),
        ('{"body": "x"}', ["no field 'text'", "body"]),
        ('{"text": "\\ud83d"}', ["surrogate"]),
    ],
)
def test_jsonl_wrong_lines_are_named(tmp_path, line, parts):
    fails(write(tmp_path, "a.jsonl", '{"text": "one"}\n' + line), "a.jsonl: line 2", *parts)


def test_jsonl_wrong_ids(tmp_path):
    fails(write(tmp_path, "a.jsonl", '{"id": [1], "text": "a"}'), "line 1", "'id' is [1]")
    fails(write(tmp_path, "a.jsonl", '{"id": 1, "text": "a"}\n{"text": "a"}'), "line 2", "no field 'id'")
    fails(write(tmp_path, "a.jsonl", '{"id": "\\ud800", "text": "a"}'), "line 1", "'id' holds half a surrogate pair")


# --- CSV and TSV


def test_csv_quotes_line_ends_and_rows(tmp_path):
    path = write(tmp_path, "a.csv", 'id,text\r\n1,"a, ""b""\r\nc"\r\n\r\n3,plain\r\n')
    assert read(path) == [("1", 'a, "b"\r\nc'), ("", ""), ("3", "plain")]


def test_tsv_quotes_are_characters(tmp_path):
    path = write(tmp_path, "a.tsv", 'text\tlabel\n"unbalanced\t1\nits "own" way\t0\n')
    assert read(path) == [(0, '"unbalanced'), (1, 'its "own" way')]


def test_one_column_needs_no_name(tmp_path):
    assert texts(write(tmp_path, "a.csv", "anything\none\n\nthree\n")) == ["one", "", "three"]


def test_the_right_field_is_asked_for(tmp_path):
    path = write(tmp_path, "a.csv", "a,b\n1,2\n")
    fails(path, "a.csv", "`text_field`", "columns: a, b")
    fails(path, "`text_field` 'text'", "columns: a, b", text="text")
    fails(path, "`id_field` 'key'", "columns: a, b", text="a", identifier="key")
    fails(write(tmp_path, "b.csv", "text,text\n1,2\n"), "columns: text, text")
    assert read(path, "b", "a") == [("1", "2")]


def test_rows_of_another_length(tmp_path):
    fails(write(tmp_path, "a.csv", "id,text\n1,one\n2,two, and more\n"), "a.csv: line 3: 3 columns", "header has 2")
    fails(write(tmp_path, "a.tsv", "id\ttext\n1\tone\n2\n"), "a.tsv: line 3: 1 columns")


def test_broken_csv_quotes(tmp_path):
    fails(write(tmp_path, "a.csv", 'text\nok\n"never closed\nmore\n'), "a.csv: line 4")
    fails(write(tmp_path, "a.csv", 'text\n"one" two\n'), "a.csv: line 2")
    fails(write(tmp_path, "a.csv", "text\rone\rtwo\r"), "a.csv: line")


# --- windows


@pytest.mark.parametrize(
    ("rows", "size", "lengths"), [(4, 1 << 20, [4, 4, 2]), (100, 2500, [3, 3, 3, 1]), (2, 1, [1] * 10)]
)
def test_windows_have_at_most_so_many_rows_and_end_when_full(rows, size, lengths):
    lines = [f"{number:01000}" for number in range(10)]
    batches = [pa.record_batch({"text": [line]}) for line in lines]
    found = list(windows(batches, rows, size))
    assert [len(batch) for batch in found] == lengths
    assert [text for batch in found for text in batch.column("text").to_pylist()] == lines


# --- Parquet


def test_parquet(tmp_path):
    many = [f"sentence {i}" for i in range(10_000)]
    path = parquet(tmp_path, {"id": list(range(5, 10_005)), "text": many, "other": [0] * 10_000}, row_group_size=3000)
    assert read(path) == [(str(i + 5), many[i]) for i in range(10_000)]
    assert texts(parquet(tmp_path, {"s": pa.array(["a", "b"]).dictionary_encode()})) == ["a", "b"]
    assert texts(parquet(tmp_path, {"s": pa.array(["a", "b"], pa.large_string())})) == ["a", "b"]


def test_wrong_parquet(tmp_path):
    fails(parquet(tmp_path, {"text": ["a", None]}), "row 2", "'text' is None")
    fails(parquet(tmp_path, {"text": [1, 2]}), "row 1", "'text' is 1")
    fails(parquet(tmp_path, {"a": [1], "b": ["x"]}), "`text_field`", "columns: a, b")
    fails(write(tmp_path, "b.parquet", "no parquet"), "b.parquet is not a whole Parquet file")
    whole = parquet(tmp_path, {"text": ["a"] * 9999}).read_bytes()
    fails(write(tmp_path, "c.parquet", whole[:-9]), "c.parquet is not a whole Parquet file")
    fails(parquet(tmp_path, {"text": pa.array([], pa.string())}), "empty")
