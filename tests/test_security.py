"""docs/security.md: each claim has a test, and the bounds it names hold."""

import gzip
import io
import re
import resource
from pathlib import Path

import pytest

from promptcli.data import files
from promptcli.data.vectors import read_vectors
from promptcli.errors import CheckFailedError, UsageError
from tests.reading import texts

ROOT = Path(__file__).parents[1]


def test_the_tests_that_the_page_names_are_there():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "security.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    for file, test in named:
        assert f"\ndef {test}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{test}"


def test_a_gzip_bomb_is_refused_at_its_first_line(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_LINE", 1 << 20)
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb") as file:
        for _ in range(200):
            file.write(b"x" * (1 << 20))
    path = tmp_path / "bomb.txt.gz"
    path.write_bytes(packed.getvalue())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UsageError, match="line 1 is longer than 1 MiB"):
        texts(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 << 10  # KiB: far from the 200 MiB inside


ROWS = 250_000_000_000
NPY = repr({"descr": "<f4", "fortran_order": False, "shape": (ROWS, 1)}).encode().ljust(117) + b"\n"


def test_a_header_of_a_terabyte_costs_nothing(tmp_path):
    name = "v.npy"
    (tmp_path / name).write_bytes(b"\x93NUMPY\x01\x00" + len(NPY).to_bytes(2, "little") + NPY + bytes(64))
    with pytest.raises((CheckFailedError, UsageError)) as refused:
        read_vectors(tmp_path / name)
    assert "\n" not in str(refused.value)
