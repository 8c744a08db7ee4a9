import pyarrow as pa
import pytest

from promptcli.data.tables import Record
from tests.reading import fails, parquet, read, texts, write

# --- JSONL


def test_jsonl_fields_and_ids(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"id": 7, "text": "one"}\n{"text": "two\\nlines", "id": "x"}\n')
    assert read(path) == [Record(0, "7", "one"), Record(1, "x", "two\nlines")]
    assert read(write(tmp_path, "b.jsonl", '{"sentence": "one", "n": 1}')) == [Record(0, 0, "one")]
    assert read(write(tmp_path, "c.ndjson", '{"id": 1, "content": "one"}')) == [Record(0, "1", "one")]
    assert read(write(tmp_path, "d.jsonl", '{"a": "one", "b": "k"}'), "a", "b") == [Record(0, "k", "one")]


def test_jsonl_blank_lines_keep_their_rows(tmp_path):
    assert read(write(tmp_path, "a.jsonl", '\n{"text": "b"}\n\n{"text": "d"}\n')) == [
        Record(0, 0, ""), Record(1, 1, "b"), Record(2, 2, ""), Record(3, 3, "d"),
    ]  # fmt: skip
    assert [r.id for r in read(write(tmp_path, "b.jsonl", '\n{"text": "b", "id": "i"}\n\n'))] == ["", "i", ""]
    assert texts(write(tmp_path, "c.jsonl", "\n\n")) == ["", ""]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('{"text": "cut', ["malformed JSON"]),
        ("[" * 100_000, ["malformed JSON"]),
        ('["one"]', ["no JSON object"]),
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
    assert read(path) == [Record(0, "1", 'a, "b"\r\nc'), Record(1, "", ""), Record(2, "3", "plain")]


def test_tsv_quotes_are_characters(tmp_path):
    path = write(tmp_path, "a.tsv", 'text\tlabel\n"unbalanced\t1\nits "own" way\t0\n')
    assert read(path) == [Record(0, 0, '"unbalanced'), Record(1, 1, 'its "own" way')]


def test_one_column_needs_no_name(tmp_path):
    assert texts(write(tmp_path, "a.csv", "anything\none\n\nthree\n")) == ["one", "", "three"]


def test_the_right_field_is_asked_for(tmp_path):
    path = write(tmp_path, "a.csv", "a,b\n1,2\n")
    fails(path, "a.csv", "--text-field", "columns: a, b")
    fails(path, "--text-field 'text'", "columns: a, b", text="text")
    fails(path, "--id-field 'key'", "columns: a, b", text="a", identifier="key")
    fails(write(tmp_path, "b.csv", "text,text\n1,2\n"), "columns: text, text")
    assert read(path, "b", "a") == [Record(0, "1", "2")]


def test_rows_of_another_length(tmp_path):
    fails(write(tmp_path, "a.csv", "id,text\n1,one\n2,two, and more\n"), "a.csv: line 3: 3 columns", "header has 2")
    fails(write(tmp_path, "a.tsv", "id\ttext\n1\tone\n2\n"), "a.tsv: line 3: 1 columns")


def test_broken_csv_quotes(tmp_path):
    fails(write(tmp_path, "a.csv", 'text\nok\n"never closed\nmore\n'), "a.csv: line 4")
    fails(write(tmp_path, "a.csv", 'text\n"one" two\n'), "a.csv: line 2")
    fails(write(tmp_path, "a.csv", "text\rone\rtwo\r"), "a.csv: line")


# --- Parquet


def test_parquet(tmp_path):
    many = [f"sentence {i}" for i in range(10_000)]
    path = parquet(tmp_path, {"id": list(range(5, 10_005)), "text": many, "other": [0] * 10_000}, row_group_size=3000)
    assert read(path) == [Record(i, str(i + 5), many[i]) for i in range(10_000)]
    assert texts(parquet(tmp_path, {"s": pa.array(["a", "b"]).dictionary_encode()})) == ["a", "b"]
    assert texts(parquet(tmp_path, {"s": pa.array(["a", "b"], pa.large_string())})) == ["a", "b"]


def test_wrong_parquet(tmp_path):
    fails(parquet(tmp_path, {"text": ["a", None]}), "row 2", "'text' is None")
    fails(parquet(tmp_path, {"text": [1, 2]}), "row 1", "'text' is 1")
    fails(parquet(tmp_path, {"a": [1], "b": ["x"]}), "--text-field", "columns: a, b")
    fails(write(tmp_path, "b.parquet", "no parquet"), "b.parquet is not a whole Parquet file")
    whole = parquet(tmp_path, {"text": ["a"] * 9999}).read_bytes()
    fails(write(tmp_path, "c.parquet", whole[:-9]), "c.parquet is not a whole Parquet file")
    fails(parquet(tmp_path, {"text": pa.array([], pa.string())}), "empty")
