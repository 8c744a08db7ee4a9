import json
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

from promptcli.data.text import open_source
from promptcli.data.vectors import FORMATS, holds_vectors, manifest_path, read_vectors
from promptcli.data.vectors.vector_format import VectorFormat
from promptcli.encoder.embedding import embed_file
from promptcli.errors import CheckFailedError, NotFoundError, UsageError
from tests.embed_fakes import FakeEncoder


def matrix(rows, width=3):
    return np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)


# --- manifests


@pytest.fixture(params=list(FORMATS))
def embedded(tmp_path, request):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    path = tmp_path / f"v{request.param}"
    with open_source(tmp_path / "a.txt") as source:
        embed_file(FakeEncoder(), source, path)
    return path


def test_manifest_comes_with_the_vectors(embedded):
    found = read_vectors(embedded)
    assert found.manifest["rows"] == 3
    assert found.manifest["fingerprint"] == "f" * 64


def test_one_changed_byte_is_found(embedded):
    data = bytearray(embedded.read_bytes())
    data[-10] ^= 1
    embedded.write_bytes(data)
    with pytest.raises(CheckFailedError, match=r"sha256 differs.*delete the manifest"):
        read_vectors(embedded)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"rows": 3, "dim": 8, "output": 1}', "\udc80"])
def test_damaged_manifest(embedded, text):
    manifest_path(embedded).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckFailedError, match="damaged manifest"):
        read_vectors(embedded)


def test_a_manifest_that_lies_about_the_shape(embedded):
    beside = manifest_path(embedded)
    beside.write_text(json.dumps(json.loads(beside.read_text()) | {"rows": 4}))
    with pytest.raises(CheckFailedError, match="its shape is"):
        read_vectors(embedded)


def test_a_file_cut_off_without_a_manifest(embedded):
    manifest_path(embedded).unlink()
    embedded.write_bytes(embedded.read_bytes()[:-5])
    with pytest.raises(CheckFailedError, match=embedded.name):
        read_vectors(embedded)


# --- foreign files


def test_missing_and_unknown_files(tmp_path):
    with pytest.raises(NotFoundError):
        read_vectors(tmp_path / "none.npy")
    (tmp_path / "a.txt").write_text("one")
    with pytest.raises(UsageError, match="no vector file"):
        read_vectors(tmp_path / "a.txt")
    (tmp_path / "d.npy").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        read_vectors(tmp_path / "d.npy")


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ">f4"])
def test_other_floats_become_float32(tmp_path, dtype):
    np.save(tmp_path / "v.npy", matrix(4).astype(dtype))
    found = read_vectors(tmp_path / "v.npy").matrix
    assert found.dtype == np.float32 and found.dtype.isnative
    assert np.allclose(found, matrix(4), atol=1e-2)


@pytest.mark.parametrize(
    "array", [np.zeros(3), np.zeros((2, 3), int), np.zeros((0, 3)), np.float32(1), np.zeros((1, 2, 3))]
)
def test_wrong_shapes(tmp_path, array):
    np.save(tmp_path / "v.npy", array)
    with pytest.raises(UsageError, match="of shape"):
        read_vectors(tmp_path / "v.npy")


def test_pickles_are_not_loaded(tmp_path):
    np.save(tmp_path / "v.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(CheckFailedError, match=r"not a whole \.npy file of numbers"):
        read_vectors(tmp_path / "v.npy")
    (tmp_path / "w.npy").write_bytes(pickle.dumps([1.0, 2.0]))
    with pytest.raises(CheckFailedError, match=r"not a whole \.npy file of numbers"):
        read_vectors(tmp_path / "w.npy")


def test_foreign_safetensors(tmp_path):
    save_file({"weights": matrix(2)}, tmp_path / "v.safetensors")
    with pytest.raises(UsageError, match="no tensor 'embeddings'; it holds: weights"):
        read_vectors(tmp_path / "v.safetensors")


def test_foreign_parquet(tmp_path):
    path = tmp_path / "v.parquet"
    pq.write_table(pa.table({"id": [7, 9], "embedding": [[1.0, 2.0], [3.0, 4.0]]}), path)  # list<double>
    found = read_vectors(path)
    assert found.ids == ["7", "9"]
    assert found.matrix.tolist() == [[1, 2], [3, 4]]
    for column in ([[1.0], [1.0, 2.0]], [[1.0], None], [[1.0], [None]]):
        pq.write_table(pa.table({"embedding": pa.array(column, pa.list_(pa.float32()))}), path)
        with pytest.raises(UsageError, match="equally many numbers"):
            read_vectors(path)
    pq.write_table(pa.table({"text": ["a"]}), path)
    with pytest.raises(UsageError, match="no column 'embedding'; columns: text"):
        read_vectors(path)
    assert not holds_vectors(path)


def test_foreign_jsonl(tmp_path):
    path = tmp_path / "v.jsonl"
    for text in ('{"embedding": [1]}\n{"embedding": [1, 2]}', '{"embedding": 3}', '{"id": null, "embedding": [1]}'):
        path.write_text(text)
        with pytest.raises(UsageError):
            read_vectors(path)
    for text in ('{"text": "a"}', "[1]", '{"embedding": ["a"]}', '{"embedding": [1'):
        path.write_text(text)
        with pytest.raises(CheckFailedError, match="line 1"):
            read_vectors(path)
    path.write_text('{"text": "sentence"}')
    assert not holds_vectors(path)
    path.write_text("no json")
    assert not holds_vectors(path)


def test_text_files_hold_no_vectors(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    assert not holds_vectors(tmp_path / "a.txt")
    with pytest.raises(NotFoundError):
        holds_vectors(tmp_path / "none.npy")


# --- a new format is one file and one row


class _Lines:
    """Write one vector a line, as text."""

    def __init__(self, file, width, with_text):
        self.file = file

    def write(self, records, vectors):
        np.savetxt(self.file, vectors)

    def close(self):
        pass

    def abandon(self):
        pass


def test_a_row_makes_a_format(monkeypatch, tmp_path, run, tiny_folder):
    def read(path):
        matrix = np.loadtxt(path, dtype=np.float32, ndmin=2)
        return range(len(matrix)), None, matrix

    monkeypatch.setitem(FORMATS, ".lines", VectorFormat(read, _Lines))
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    target = tmp_path / "a.lines"
    ran = run("embed", tmp_path / "a.txt", "-o", target, "--backbone", tiny_folder("bert"), "--offline", "-q")
    assert ran.code == 0, ran.err
    found = read_vectors(target)
    assert found.matrix.shape == (found.manifest["rows"], found.manifest["dim"]) == (2, found.matrix.shape[1])
    ran = run("index", "build", target, "-o", tmp_path / "index", "--texts", tmp_path / "a.txt", "-q")
    assert ran.code == 0, ran.err


def test_a_pipe_holds_sentences_and_no_vectors(tmp_path):
    for name in ("rows.jsonl", "rows.parquet"):
        os.mkfifo(tmp_path / name)
        assert not holds_vectors(tmp_path / name)  # without opening it, which would wait for a writer
        with pytest.raises(UsageError, match=r"is a pipe, and .* is not read from front to end; give a file"):
            read_vectors(tmp_path / name)
