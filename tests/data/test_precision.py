"""Vectors in fewer bytes: bytes against sentence-transformers', every format there and back, and
what is lost.
"""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import promptcli as pc
from promptcli.data.vectors.formats import VECTOR_FORMATS, manifest_path, read_vectors
from promptcli.data.vectors.precision import PRECISIONS, neighbour_recall, quantize
from promptcli.embedding.writing import Quantizer
from tests.comparing import gap, refusal, refused
from tests.fake_commands import fake_encoder, names  # noqa: F401
from tests.fake_encoder import vector

LESS = [name for name in PRECISIONS if name != "float32"]
LINES = [f"line {number}" for number in range(60)]
ORIGINAL = np.stack([vector(line) for line in LINES])
MATRICES = st_numpy.arrays(
    np.float32,
    st.tuples(st.integers(1, 9), st.integers(1, 19)),
    elements=st.floats(-1000, 1000, width=32),
)


@given(MATRICES, st.sampled_from(LESS))
def test_bytes_and_values_by_plain_loops(vectors, precision):
    found = quantize(vectors, precision)
    restored = found.restore()
    assert restored.shape == vectors.shape and restored.dtype == np.float32
    low, high = vectors.min(axis=0), vectors.max(axis=0)
    for row in range(len(vectors)):
        if precision in ("binary", "ubinary"):
            bits = "".join("1" if value > 0 else "0" for value in vectors[row])
            bits += "0" * (-len(bits) % 8)
            numbers = [int(bits[at : at + 8], 2) for at in range(0, len(bits), 8)]
            assert found.matrix[row].tolist() == [
                n - 128 if precision == "binary" else n for n in numbers
            ]
            assert restored[row].tolist() == [1 if value > 0 else -1 for value in vectors[row]]
        elif precision == "float16":
            assert np.array_equal(restored[row], vectors[row].astype(np.float16).astype(np.float32))
        else:
            half = (high - low) / 255 / 2 + np.finfo(
                np.float32
            ).tiny  # below it float32 has no 255 steps
            assert (
                np.abs(restored[row] - vectors[row]) <= half * 1.01 + 1e-4 * np.abs(vectors).max()
            ).all()


@pytest.mark.parametrize("precision", ["int8", "binary", "ubinary"])
def test_bytes_are_those_of_sentence_transformers(precision):
    module = pytest.importorskip(
        "sentence_transformers.util.quantization", reason="sentence-transformers is absent"
    )
    vectors = np.random.default_rng(1).standard_normal((300, 20)).astype(np.float32)
    vectors[:, 3] = 0.5
    theirs = module.quantize_embeddings(vectors, precision=precision)
    assert np.array_equal(quantize(vectors, precision).matrix, theirs)
    assert quantize(vectors, precision).matrix.dtype == theirs.dtype


def test_queries_get_the_buckets_of_the_rows_and_are_clipped():
    rows = pc.quantize(ORIGINAL, "int8")
    queries = pc.quantize(ORIGINAL[:2] * 3, "int8", ranges=rows.ranges)
    assert np.array_equal(queries.ranges, rows.ranges)
    inside = np.clip(ORIGINAL[:2] * 3, rows.ranges[0], rows.ranges[1])
    assert gap(queries.restore(), inside) <= np.ptp(rows.ranges, axis=0).max() / 255


def test_a_tensor_that_is_differentiated_is_quantized_as_its_numbers():
    tensor = torch.tensor(ORIGINAL, requires_grad=True)
    for vectors in (tensor, tensor.half()):
        numbers = vectors.detach().float().numpy()
        assert np.array_equal(
            pc.quantize(vectors, "int8").matrix, pc.quantize(numbers, "int8").matrix
        )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((ORIGINAL, "int4"), "unknown precision 'int4'; valid: .*did you mean int8"),
        ((ORIGINAL[0], "int8"), r"shape \(8,\) are not allowed; give \(n, d\)"),
        ((ORIGINAL, "int8", np.zeros((2, 3))), r"ranges of shape \(2, 3\)"),
        ((np.where(ORIGINAL > 1, np.nan, ORIGINAL), "int8"), "vectors: must be finite"),
        ((np.where(ORIGINAL > 1, np.inf, ORIGINAL), "float32"), "vectors: must be finite"),
        ((ORIGINAL.astype(float) * 1e300, "binary"), "vectors: must be finite"),
        ((ORIGINAL * 1e4, "float16"), "do not fit float16; give float32 or int8"),
    ],
)
def test_what_cannot_be_is_one_line(arguments, message):
    with refusal(message) as caught:
        pc.quantize(*arguments)
    assert "\n" not in str(caught.value)


def test_the_loss_by_plain_loops():
    before = np.random.default_rng(2).standard_normal((40, 6)).astype(np.float32)
    after = quantize(before, "binary").restore()
    units = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (before, after)]
    true, found = (rows @ rows.T for rows in units)
    least = most = 0
    for row in range(40):
        others = [other for other in range(40) if other != row]
        nearest = set(sorted(others, key=lambda other: -true[row, other])[:10])
        limit = sorted((found[row, other] for other in others), reverse=True)[9]
        least += len({other for other in others if found[row, other] > limit + 1e-6} & nearest)
        most += min(
            10, len({other for other in others if found[row, other] > limit - 1e-6} & nearest)
        )
    # of those that are equally near any may be taken
    assert least <= round(neighbour_recall(before, after) * 400) <= most
    assert neighbour_recall(before, before) == 1.0


def test_windows_share_the_ranges_of_the_first():
    quantizer, both = Quantizer("int8"), np.concatenate([ORIGINAL[:30], ORIGINAL[30:] * 2])
    parts = [quantizer.quantize(part) for part in (both[:30], both[30:])]
    assert np.array_equal(np.concatenate(parts), quantize(both, "int8", quantizer.ranges).matrix)
    assert quantizer.loss().rows == 30 and Quantizer("int8").loss() is None


@pytest.fixture(autouse=True)
def lines(fake):
    Path("a.txt").write_text("\n".join(LINES) + "\n")


@pytest.mark.parametrize("kind", list(VECTOR_FORMATS))
@pytest.mark.parametrize("precision", LESS)
def test_every_format_holds_it_and_gives_it_back(run, kind, precision):
    code, out, err = run("embed", "a.txt", "-o", f"v{kind}", "--precision", precision, "--json")
    assert code == 0, err
    expected = quantize(ORIGINAL, precision)
    if VECTOR_FORMATS[kind].read is not None:
        found = read_vectors(Path(f"v{kind}"))
        assert np.array_equal(found.matrix, expected.restore()) and found.precision == precision
    said, manifest = json.loads(out), json.loads(manifest_path(Path(f"v{kind}")).read_text())
    assert said["loss"] == manifest["report"]["loss"] and said["loss"]["rows"] == 60
    assert said["precision"] == manifest["settings"]["precision"] == precision
    assert (
        f"{precision} against float32 on 60 rows: recall@10 {said['loss']['recall_at_10']:.3f}"
        in err
    )
    assert (manifest["report"]["ranges"] is not None) == (precision == "int8")
    stored = {
        ".npy": lambda: np.load("v.npy"),
        ".parquet": lambda: np.array(
            pq.read_table("v.parquet")["embedding"].to_pylist(), expected.matrix.dtype
        ),
        ".jsonl": lambda: np.array(
            [json.loads(row)["embedding"] for row in Path("v.jsonl").open()]
        ),
    }[kind]()
    assert np.array_equal(stored.astype(expected.matrix.dtype), expected.matrix)
    if kind == ".npy":
        assert stored.dtype == expected.matrix.dtype


def test_wrong_combinations_are_refused_before_the_model_is_loaded(run, fake):
    refused(run("embed", "a.txt", "--precision", "int4"), 2, "unknown precision 'int4'", "int8")
    refused(
        run("embed", "a.txt", "--precision", "int8", "-o", "-"), 2, "needs a manifest", "output"
    )
    refused(run("embed", "a.txt", "--json", "-o", "-"), 2, "--json", "-o")
    assert not fake and names() == ["a.txt"]
    code, out, _ = run("embed", "a.txt", "--precision", "ubinary", "-o", "-")
    [first] = quantize(ORIGINAL[:1], "ubinary").matrix.tolist()
    assert code == 0 and json.loads(out.splitlines()[0])["embedding"] == first


def test_an_index_takes_all_but_bits(run):
    for precision in LESS:
        assert run("embed", "a.txt", "-o", f"{precision}.parquet", "--precision", precision)[0] == 0
        ran = run("index", "build", f"{precision}.parquet", "-o", precision)
        if precision in ("float16", "int8"):
            assert ran[0] == 0 and "60 rows" in ran[2], ran[2]
        else:
            refused(ran, 2, f"{precision}.parquet", "float16 or int8")
            assert not Path(precision).exists()
