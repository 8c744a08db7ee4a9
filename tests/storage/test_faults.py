"""Hostile names, numbers and damaged parts: refused in one line, before the work, never
believed.
"""

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from promptcli.backbones.devices import choose_device
from promptcli.data.vectors.part_folder import part_name
from promptcli.recipe import Recipe
from promptcli.storage.files import MAX_NAME_BYTES
from tests.comparing import refusal, refused
from tests.fake_commands import fake_encoder  # noqa: F401

EMBED = ("embed", "a.txt", "-o", "out", "--shards", "2")
LONG = "n" * (MAX_NAME_BYTES + 1)
DIGITS = "9" * 5000


@pytest.fixture(autouse=True)
def text():
    Path("a.txt").write_text("".join(f"line {number}\n" for number in range(10)))


def test_a_flipped_byte_of_a_part_is_found_before_its_rows_are_used(run):
    assert run(*EMBED)[0] == 0
    path = Path("out", part_name(1, 2))
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(2)
    data = bytearray(path.read_bytes())
    # in the last vector: the file can be read
    data[chunk.data_page_offset + chunk.total_compressed_size - 5] ^= 64
    path.write_bytes(data)
    refused(run("index", "build", "out", "-o", "ix"), 4, path.name)
    assert not Path("ix").exists()


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (("embed", "."), 2, "a folder"),
        (("embed", "a.txt", "-o", f"{LONG}.npy"), 2, "nnn... has more than"),
        (("embed", "a.txt", "-o", LONG, "--shards", "2"), 2, "nnn... has more than"),
        (("search-templates", "--candidates", "/".join(["d" * 200] * 25)), 3, "File name too long"),
        (("embed", "a.txt", "-o", "loop", "--shards", "2"), 2, "leads to itself"),
        (("index", "build", "a.txt", "-o", "loop"), 2, "leads to itself"),
        (("serve", "--index", "loop"), 2, "leads to itself"),
        (("export", "mini", "--to", "sentence-transformers", "-o", "loop"), 2, "leads to itself"),
        (("embed", "a.txt", "-o", os.fsdecode(b"p\xff"), "--shards", "2"), 2, "UTF-8"),
        (("embed", "a.txt", "-o", "a.txt", "--shards", "2"), 2, "is a file; give"),
        (("embed", "a.txt", "-o", "no/where", "--shards", "2"), 3, "no folder 'no'"),
    ],
)
def test_hostile_names_are_refused_before_the_work(run, command, code, message, fake):
    for name in ("loop", "loop.npy"):
        os.symlink(name, name)
    refused(run(*command), code, message)
    assert not fake and sorted(os.listdir()) == ["a.txt", "loop", "loop.npy"]


def test_the_longest_name_is_written(run):
    name = "n" * (MAX_NAME_BYTES - 4) + ".npy"
    assert run("embed", "a.txt", "-o", name)[0] == 0
    assert run("embed", "a.txt", "-o", "n" * MAX_NAME_BYTES, "--shards", "2")[0] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"pooling": f"layer-{DIGITS}/avg"},
        {"pooling": f"last/ditto:{DIGITS}-1"},
        {"transforms": (f"spectral:{DIGITS}-1",)},
        {"prompt": f"deep-prefix:{DIGITS}"},
        {"prompt": f"token-prepending:1-{DIGITS}:[X]"},
    ],
)
def test_numbers_that_python_does_not_read_are_refused(fields):
    with refusal("not allowed"):
        Recipe(**fields).parts  # noqa: B018
    with refusal("unknown device"):
        choose_device(f"cuda:{DIGITS}")
