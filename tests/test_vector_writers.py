import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from safetensors import safe_open

from promptcli.data.tables import Record
from promptcli.data.vectors import FORMATS, holds_vectors, kind_of, open_sink, read_vectors
from promptcli.errors import UsageError

KINDS = list(FORMATS)
TEXTS = ["one", "", 'three "quoted"', "vier \u2028 ü 😀", "five"]


def records(texts=TEXTS, ids=None):
    return [Record(row, row if ids is None else ids[row], text) for row, text in enumerate(texts)]


def matrix(rows, width=3):
    return np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)


def write(path, rows, vectors, *, with_text=True, parts=2):
    with path.open("wb") as file, open_sink(file, path.suffix, vectors.shape[1], with_text=with_text) as sink:
        for part in np.array_split(np.arange(len(rows)), parts):
            sink.write([rows[i] for i in part], vectors[part])
    return path


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read(tmp_path, kind, parts):
    vectors = matrix(5)
    found = read_vectors(write(tmp_path / f"v{kind}", records(), vectors, parts=parts))
    assert found.matrix.dtype == np.float32
    assert np.array_equal(found.matrix, vectors)
    assert list(found.ids) == [0, 1, 2, 3, 4]
    assert found.texts == (TEXTS if kind in (".parquet", ".jsonl") else None)
    assert found.manifest is None
    assert holds_vectors(tmp_path / f"v{kind}")


@pytest.mark.parametrize("kind", [".parquet", ".jsonl"])
def test_ids_and_missing_texts(tmp_path, kind):
    path = write(tmp_path / f"v{kind}", records(ids=list("abcde")), matrix(5), with_text=False)
    found = read_vectors(path)
    assert found.ids == list("abcde")
    assert found.texts is None


def test_npy_is_numpys_own_and_mapped(tmp_path):
    path = write(tmp_path / "v.npy", records(), matrix(5))
    loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    assert loaded.shape == (5, 3)
    assert loaded.dtype == np.float32
    assert np.array_equal(loaded, matrix(5))
    assert path.stat().st_size == 128 + 4 * 15
    assert isinstance(read_vectors(path).matrix, np.memmap)


def test_safetensors_is_readable_by_its_library(tmp_path):
    path = write(tmp_path / "v.safetensors", records(), matrix(5))
    with safe_open(path, framework="numpy") as file:
        assert list(file.keys()) == ["embeddings"]
        assert np.array_equal(file.get_tensor("embeddings"), matrix(5))


@pytest.mark.parametrize("kind", [".npy", ".safetensors"])
def test_a_header_has_room_for_any_number_of_rows(kind):
    file = io.BytesIO()
    with open_sink(file, kind, 768) as sink:
        before = file.tell()
        sink._rows = 10**12
    assert file.tell() == before


def test_parquet_columns(tmp_path):
    path = write(tmp_path / "v.parquet", records(), matrix(5))
    schema = pq.read_schema(path)
    assert schema.field("embedding").type == pa.list_(pa.float32(), 3)
    assert schema.field("id").type == pa.int64()
    assert schema.names == ["id", "text", "embedding"]
    named = write(tmp_path / "w.parquet", records(ids=list("abcde")), matrix(5), with_text=False)
    assert pq.read_schema(named).names == ["id", "embedding"]
    assert pq.read_schema(named).field("id").type == pa.string()


def test_jsonl_lines(tmp_path):
    path = write(tmp_path / "v.jsonl", records(), matrix(5))
    lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]]
    assert [list(line) for line in lines] == [["id", "text", "embedding"]] * 5
    assert [line["text"] for line in lines] == TEXTS
    assert "😀" in path.read_text()


@settings(max_examples=50, deadline=None)
@given(st_numpy.arrays(np.float32, (3, 4), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_jsonl_numbers_come_back_exactly(vectors):
    file = io.BytesIO()
    with open_sink(file, ".jsonl", 4) as sink:
        sink.write(records(["a", "b", "c"]), vectors)
    rows = [json.loads(line)["embedding"] for line in file.getvalue().splitlines()]
    assert np.array_equal(np.array(rows, dtype=np.float32), vectors)


def test_unknown_extension():
    with pytest.raises(UsageError, match=r"v\.csv.*\.npy, \.parquet, \.jsonl, \.safetensors"):
        kind_of(Path("v.csv"))
