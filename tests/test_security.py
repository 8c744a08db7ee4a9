"""docs/security.md: each claim has a test, and the bounds it names hold."""

import bz2
import contextlib
import gzip
import io
import lzma
import re
import resource
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from promptcli.data import input_files
from promptcli.data.layouts import PAIRS, ColumnChoice
from promptcli.data.rows import open_rows
from promptcli.data.vectors.formats import read_vectors
from promptcli.errors import CheckFailedError, UsageError
from tests.comparing import refusal
from tests.source_files import texts

ROOT = Path(__file__).parents[1]


def test_the_tests_that_the_page_names_are_there():
    named = re.findall(
        r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    )
    assert len(named) > 20
    for file, test in named:
        assert f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_a_gzip_bomb_is_refused_at_its_first_line(tmp_path, monkeypatch):
    monkeypatch.setattr(input_files, "MAX_LINE_CHARACTERS", 1 << 20)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as file:
        for _ in range(200):
            file.write(b"x" * (1 << 20))
    path = tmp_path / "bomb.txt.gz"
    path.write_bytes(packed.getvalue())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with refusal("line 1 is longer than 1 MiB"):
        texts(path)
    # KiB: far from the 200 MiB inside
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10


@pytest.fixture
def small_bombs(monkeypatch):
    """Let a test's own small files be bombs."""
    monkeypatch.setattr(input_files, "MAX_UNPACKED_BYTES", 1 << 22)


@contextlib.contextmanager
def little_memory():
    """Check that the block takes no memory for what it reads.

    Making the bomb takes some before.
    """
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # KiB


def _dictionary(path):
    """A text of 1 MB, and 5,000 rows that point to it."""
    numbers = pa.array([0] * 5000, pa.int32())
    column = pa.DictionaryArray.from_arrays(numbers, pa.array(["a cat " * 170_000]))
    pq.write_table(pa.table({"text": column}), path, compression="zstd")


def _plain_dictionary(path):
    """The same, without a word to Arrow that the column is a dictionary."""
    _dictionary(path)
    pq.write_table(pq.read_table(path).slice(0, 1).cast(pa.schema({"text": pa.string()})), path)
    one = pq.read_table(path).column("text").chunk(0)
    with pq.ParquetWriter(path, pa.schema({"text": pa.string()}), compression="zstd") as writer:
        writer.write_table(pa.table({"text": pa.chunked_array([one] * 500)}))


def _pages(path):
    column = pa.array(["a cat " * 170_000] * 100)
    pq.write_table(pa.table({"text": column}), path, compression="zstd", use_dictionary=False)


def _vectors(path):
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(1 << 23, np.float32)), 16)
    pq.write_table(pa.table({"embedding": column}), path, compression="zstd", use_dictionary=False)


def _nulls(path):
    """One row, a list of a million nulls, which take no byte."""
    nulls = pa.nulls(1 << 20, pa.string())
    lists = pa.ListArray.from_arrays(pa.array([0, len(nulls)], pa.int32()), nulls)
    pq.write_table(pa.table({"text": ["a cat"], "other": lists}), path, compression="zstd")


@pytest.mark.parametrize(
    ("make", "read"),
    [
        (_nulls, texts),
        (_dictionary, texts),
        (_plain_dictionary, texts),
        (_pages, texts),
        (_vectors, read_vectors),
    ],
)
@pytest.mark.usefixtures("small_bombs")
def test_a_parquet_bomb_is_refused(make, read, tmp_path):
    path = tmp_path / "bomb.parquet"
    make(path)
    said = r"unpacks to more than 1,000 times its size.*write it again"
    with little_memory(), pytest.raises((UsageError, CheckFailedError), match=said):
        read(path)


def test_lists_in_the_place_of_texts_are_refused_by_their_type(tmp_path):
    pq.write_table(pa.table({"text": [["a cat"], None]}), tmp_path / "a.parquet")
    with refusal("'text' holds list"):
        texts(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "line"), [("b.txt.gz", "\n"), ("b.txt.bz2", "cat\n"), ("b.csv.xz", "text,n\n")]
)
@pytest.mark.usefixtures("small_bombs")
def test_a_bomb_of_short_lines_is_refused(name, line, tmp_path):
    with {".gz": gzip, ".bz2": bz2, ".xz": lzma}[Path(name).suffix].open(
        tmp_path / name, "wt"
    ) as file:
        for _ in range(10):
            file.write(line * 10_000)
    said = "unpacks to more than 1,000 times its size; if it should, unpack it"
    with little_memory(), refusal(said):
        texts(tmp_path / name)


def test_rows_whose_second_column_is_long_are_read_a_few_at_a_time(tmp_path):
    (tmp_path / "long.csv").write_text("sentence1,sentence2\n" + f"cat,{'dog ' * 30_000}\n" * 40)
    with open_rows(tmp_path / "long.csv", ColumnChoice(layouts=(PAIRS,), remedy="")) as rows:
        assert max(len(batch["sent0"]) for batch in rows) < 12


def test_a_table_has_a_limit_of_columns(tmp_path):
    (tmp_path / "wide.csv").write_text(f"text{',' * 10_000}\n" * 2)
    with refusal("10,001 columns"):
        texts(tmp_path / "wide.csv")


ROWS = 250_000_000_000
NPY = repr({"descr": "<f4", "fortran_order": False, "shape": (ROWS, 1)}).encode().ljust(117) + b"\n"


def test_a_header_of_a_terabyte_costs_nothing(tmp_path):
    name = "v.npy"
    (tmp_path / name).write_bytes(
        b"\x93NUMPY\x01\x00" + len(NPY).to_bytes(2, "little") + NPY + bytes(64)
    )
    with pytest.raises((CheckFailedError, UsageError)) as refused:
        read_vectors(tmp_path / name)
    assert "\n" not in str(refused.value)
