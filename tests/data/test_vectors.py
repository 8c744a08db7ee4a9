"""Vector files are read as they were written; manifests; foreign and damaged files."""

import io
import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import promptcli as pc
from promptcli.data.rows import open_rows
from promptcli.data.vectors.formats import (
    VECTOR_FORMATS,
    closing_sink,
    holds_vectors,
    manifest_path,
    read_vectors,
)
from promptcli.data.vectors.parquet import ParquetRows
from promptcli.embedding.writing import VectorWriter
from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from tests.comparing import refusal
from tests.fake_encoder import FakeEncoder
from tests.source_files import batch


def matrix(rows, width=3):
    return np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)


#: Formats that are read.
READ = [kind for kind, form in VECTOR_FORMATS.items() if form.read is not None]


@pytest.fixture(params=READ)
def embedded(tmp_path, request):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    path = tmp_path / f"v{request.param}"
    with open_rows(tmp_path / "a.txt") as source:
        VectorWriter(FakeEncoder()).write_file(source, path)
    return path


def test_one_changed_byte_is_found(embedded):
    data = bytearray(embedded.read_bytes())
    data[-10] ^= 1
    embedded.write_bytes(data)
    with refusal(r"sha256 differs.*delete the manifest", CheckFailedError):
        read_vectors(embedded)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"dim": 8, "output": 1}', "\udc80"])
def test_a_damaged_manifest_is_refused(embedded, text):
    manifest_path(embedded).write_bytes(text.encode(errors="surrogateescape"))
    with refusal(r"manifest\.json", CheckFailedError):
        read_vectors(embedded)


def test_a_file_cut_off_without_a_manifest(embedded):
    manifest_path(embedded).unlink()
    embedded.write_bytes(embedded.read_bytes()[:-5])
    with refusal(embedded.name, CheckFailedError):
        read_vectors(embedded)


def test_missing_and_unknown_files_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "d.npy").mkdir()
    for name, error in (("none.npy", NotFoundError), ("a.txt", UsageError), ("d.npy", UsageError)):
        with pytest.raises(error, match=name):
            read_vectors(tmp_path / name)
    assert not holds_vectors(tmp_path / "a.txt")
    with pytest.raises(NotFoundError):
        holds_vectors(tmp_path / "none.npy")


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
def test_other_floats_become_float32(tmp_path, dtype):
    np.save(tmp_path / "v.npy", matrix(4).astype(dtype))
    found = read_vectors(tmp_path / "v.npy").matrix
    assert found.dtype == np.float32 and found.dtype.isnative
    assert np.allclose(found, matrix(4), atol=1e-2)


@pytest.mark.parametrize(
    "array",
    [np.zeros(3), np.zeros((2, 3), int), np.zeros((0, 3)), np.float32(1), np.zeros((1, 2, 3))],
)
def test_wrong_shapes_are_refused(tmp_path, array):
    np.save(tmp_path / "v.npy", array)
    with refusal("of shape"):
        read_vectors(tmp_path / "v.npy")


def test_pickles_are_not_loaded(tmp_path):
    np.save(tmp_path / "v.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "w.npy").write_bytes(pickle.dumps([1.0, 2.0]))
    for name in ("v.npy", "w.npy"):
        with refusal(r"not a complete \.npy file of numbers", CheckFailedError):
            read_vectors(tmp_path / name)


def test_parquet_of_other_programs_is_read(tmp_path):
    path = tmp_path / "v.parquet"
    # list<double>
    pq.write_table(pa.table({"id": [7, 9], "embedding": [[1.0, 2.0], [3.0, 4.0]]}), path)
    found = read_vectors(path)
    assert found.ids == ["7", "9"]
    assert found.matrix.tolist() == [[1, 2], [3, 4]]
    numbers = pa.list_(pa.float32())
    for column in ([[1.0], [1.0, 2.0]], [[1.0], None], [[1.0], [None]], [["a"], ["b"]]):
        kind = pa.list_(pa.string()) if column[0] == ["a"] else numbers
        pq.write_table(pa.table({"embedding": pa.array(column, kind)}), path)
        with refusal("of the same length in every row"):
            read_vectors(path)
    twice = pa.Table.from_arrays(
        [pa.array([[1.0]]), pa.array(["1"]), pa.array(["2"])], ["embedding", "id", "id"]
    )
    for table, fault in (
        (pa.table({"text": ["a"]}), "no column 'embedding'"),
        (twice, "several columns"),
    ):
        pq.write_table(table, path)
        with refusal(fault):
            read_vectors(path)
    pq.write_table(pa.table({"text": ["a"]}), path)
    assert not holds_vectors(path)


def test_vectors_are_not_read_from_jsonl(tmp_path):
    path = tmp_path / "v.jsonl"
    path.write_text('{"embedding": [1]}')
    assert holds_vectors(path)
    with refusal(r"read from \.npy and \.parquet"):
        read_vectors(path)
    path.write_text('{"text": "sentence"}')
    assert not holds_vectors(path)
    path.write_text("no json")
    assert not holds_vectors(path)


def test_a_pipe_holds_sentences_and_no_vectors(tmp_path):
    for name in ("rows.jsonl", "rows.parquet"):
        os.mkfifo(tmp_path / name)
        # without opening it, which would wait for a writer
        assert not holds_vectors(tmp_path / name)
        with refusal(r"is a pipe"):
            read_vectors(tmp_path / name)


TEXTS = ["one", "", 'three "quoted"', "vier \u2028 ü 😀", "five"]


def write(path, rows, vectors, *, parts=2):
    with (
        path.open("wb") as file,
        closing_sink(VECTOR_FORMATS[path.suffix].open(file, vectors.shape[1])) as sink,
    ):
        for part in np.array_split(np.arange(len(vectors)), parts):
            some = {name: [cells[row] for row in part] for name, cells in rows.items()}
            sink.write(some, vectors[part])
    return path


@pytest.mark.parametrize("parts", [1, 2, 5])
@pytest.mark.parametrize("kind", READ)
def test_what_is_written_is_read(tmp_path, kind, parts):
    vectors = matrix(5)
    found = read_vectors(write(tmp_path / f"v{kind}", batch(TEXTS), vectors, parts=parts))
    assert found.matrix.dtype == np.float32 and np.array_equal(found.matrix, vectors)
    assert (list(found.ids), found.manifest) == ([0, 1, 2, 3, 4], None)
    assert found.texts == (TEXTS if kind == ".parquet" else None)
    assert holds_vectors(tmp_path / f"v{kind}")


def test_ids_may_be_texts(tmp_path):
    path = write(tmp_path / "v.parquet", batch(TEXTS, "abcde"), matrix(5))
    assert read_vectors(path).ids == list("abcde")


def test_ids_of_all_blocks_are_numbers_or_all_are_texts(tmp_path):
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for second, ids in (((3, 4), range(5)), ((50, 51), ["0", "1", "2", "50", "51"])):
        for path, some in zip(paths, ((0, 1, 2), second), strict=True):
            table = {"id": some, "embedding": [[1.0, 2.0]] * len(some)}
            pq.write_table(pa.table(table), path)
        rows = ParquetRows(paths)
        found = [each for block in rows.blocks(2) for each in block.ids]
        assert found == list(ids) and rows.are_numbered == isinstance(ids, range)


def test_npy_is_numpys_own_and_mapped(tmp_path):
    path = write(tmp_path / "v.npy", batch(TEXTS), matrix(5))
    loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    assert loaded.dtype == np.float32 and np.array_equal(loaded, matrix(5))
    assert path.stat().st_size == 128 + 4 * 15
    assert isinstance(read_vectors(path).matrix, np.memmap)


def test_parquet_has_ids_texts_and_vectors(tmp_path):
    path = write(tmp_path / "v.parquet", batch(TEXTS), matrix(5))
    schema = pq.read_schema(path)
    assert schema.field("embedding").type == pa.list_(pa.float32(), 3)
    assert schema.field("id").type == pa.int64()
    assert schema.names == ["id", "text", "embedding"]
    named = write(tmp_path / "w.parquet", batch(TEXTS, "abcde"), matrix(5))
    assert pq.read_schema(named).field("id").type == pa.string()


@settings(max_examples=50)
@given(
    st_numpy.arrays(
        np.float32, (3, 4), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)
    )
)
def test_jsonl_numbers_come_back_exactly(vectors):
    file = io.BytesIO()
    with closing_sink(VECTOR_FORMATS[".jsonl"].open(file, 4)) as sink:
        sink.write(batch(["a", "b", "c"]), vectors)
    rows = [json.loads(line)["embedding"] for line in file.getvalue().splitlines()]
    assert np.array_equal(np.array(rows, dtype=np.float32), vectors)


@pytest.mark.parametrize(
    ("precision", "said"), [("bogus", "not one of float32"), ("int8", "its ranges")]
)
def test_a_manifest_that_does_not_fit_its_vectors_is_refused(precision, said, tmp_path):
    (tmp_path / "a.txt").write_text("A cat sleeps.\n")
    pc.embed(tmp_path / "a.txt", model="mini-static")
    manifest = tmp_path / "a.txt.npy.manifest.json"
    manifest.write_text(
        manifest.read_text().replace('"precision": "float32"', f'"precision": "{precision}"')
    )
    with refusal(said, CheckFailedError):
        pc.read_vectors(tmp_path / "a.txt.npy")
