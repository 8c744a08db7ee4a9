"""Names and files as hostile as users may give: refused in one line, before the work, never believed."""

import gzip
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from promptcli.backbones.devices import choose_device
from promptcli.data.vectors.part_folder import part_name
from promptcli.errors import UsageError
from promptcli.recipe import Recipe
from promptcli.storage.files import LONGEST_NAME
from tests.embed_running import fake_encoder, refused  # noqa: F401

EMBED = ("embed", "a.txt", "-o", "out", "--shards", "2")


@pytest.fixture(autouse=True)
def text():
    Path("a.txt").write_text("".join(f"line {number}\n" for number in range(10)))


def flip_a_byte(path):
    """Change a bit of the last number of the column of vectors, which leaves the file whole for Parquet's reader."""
    chunk = pq.ParquetFile(path).metadata.row_group(0).column(2)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 5] ^= 64
    path.write_bytes(data)


def test_a_flipped_byte_of_a_part_is_found_before_its_rows_are_used(run):
    assert run(*EMBED)[0] == 0
    flip_a_byte(Path("out", part_name(1, 2)))
    refused(run("index", "build", "out", "-o", "ix"), 4, part_name(1, 2))
    assert not Path("ix").exists()


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".txt"])
def test_compressed_tables_are_embedded_into_parts(run, suffix):
    comma = {".csv": ",", ".tsv": "\t"}.get(suffix)
    rows = [f"text{comma}id", *(f"line {number}{comma}{number}" for number in range(10))]
    if comma is None:
        rows = [json.dumps({"text": f"line {number}", "id": number}) for number in range(10)]
    content = "".join(f"{row}\n" for row in rows)
    Path(f"x{suffix}").write_text(content)
    Path(f"x{suffix}.gz").write_bytes(gzip.compress(content.encode()))
    for name in (f"x{suffix}", f"x{suffix}.gz"):
        assert run("embed", name, "-o", f"{name}-parts", "--shards", "3")[0] == 0
    plain, packed = (
        [pq.read_table(path).to_pylist() for path in sorted(Path(f"{name}-parts").glob("part*"))]
        for name in (f"x{suffix}", f"x{suffix}.gz")
    )
    assert plain == packed and sum(map(len, packed)) == 10


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (("embed", ""), "FILES"),
        (("embed", "", "--shards", "2", "-o", "out"), "FILES"),
        (("embed", "a.txt", "", "--shards", "2", "-o", "out"), "the name of an input"),
        (("embed", "a.txt", "-o", ""), "--output"),
        (("embed", "a.txt", "--output="), "--output"),
        (("index", "build", "", "-o", "ix"), "FILE"),
        (("train", "simcse", "--data", "", "--dry-run"), "--data"),
        (("eval", "--data-dir", ""), "--data-dir"),
    ],
)
def test_a_variable_that_is_not_set_is_no_folder_and_no_default(run, command, named):
    pq.write_table(pa.table({"text": ["a", "b"]}), "somebodys.parquet")
    refused(run(*command), 2, f"{named} is empty (a variable that is not set?)")
    assert sorted(os.listdir()) == ["a.txt", "somebodys.parquet"]


def test_a_folder_is_no_file_of_sentences(run):
    for name in (".", "./", ".."):
        refused(run("embed", name), 2, "is a folder; give a file in it")


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.date32()])
def test_a_date_beyond_the_year_9999_is_one_line(run, kind):
    far = pa.array([2**31 - 1 if kind == pa.date32() else 2**62, 1], kind)
    pq.write_table(pa.table({"text": ["a", "b"], "id": far}), "far.parquet")
    refused(run("embed", "far.parquet"), 2, "column 'id' of", "give text or whole numbers")
    refused(run("embed", "far.parquet", "-o", "out", "--shards", "2"), 2, "column 'id' of")


LONG = "n" * (LONGEST_NAME + 1)


@pytest.mark.parametrize(
    "command",
    [
        ("embed", "a.txt", "-o", f"{LONG}.npy"),
        ("embed", "a.txt", "-o", LONG, "--shards", "2"),
        ("export", "mini", "--to", "sentence-transformers", "-o", LONG),
        ("search-templates", "--mode", "free", "-o", f"{LONG}.toml", "-q"),
    ],
)
def test_names_too_long_are_refused_before_the_work(run, command, fake):
    refused(run(*command), 2, "nnn...: the name has more than", "give a shorter one")
    assert not fake


def test_the_longest_name_is_written(run):
    name = "n" * (LONGEST_NAME - 4) + ".npy"
    assert run("embed", "a.txt", "-o", name)[0] == 0
    assert run("embed", "a.txt", "-o", "n" * LONGEST_NAME, "--shards", "2")[0] == 0


@pytest.mark.parametrize(
    "command",
    [
        ("embed", "a.txt", "-o", "loop.npy"),
        ("embed", "a.txt", "-o", "loop", "--shards", "2"),
        ("index", "build", "a.txt", "-o", "loop"),
        ("index", "info", "loop"),
        ("index", "search", "loop", "a"),
        ("serve", "--index", "loop"),
        ("export", "mini", "--to", "sentence-transformers", "-o", "loop"),
    ],
)
def test_a_link_that_leads_to_itself_is_one_line(run, command, fake):
    for name in ("loop", "loop.npy"):
        os.symlink(name, name)
    refused(run(*command), 2, "is a symbolic link that leads to itself; give another path")
    assert not fake


def test_paths_beyond_what_the_system_takes_are_one_line(run):
    for far in ("/".join(["d" * 200] * 25), "d" * 300):
        refused(run("search-templates", "--candidates", far, "-o", "t.toml", "-q"), 2, "File name too long")


def test_parts_need_a_name_that_arrow_opens(run, fake):
    refused(run("embed", "a.txt", "-o", os.fsdecode(b"p\xff"), "--shards", "2"), 2, "needs a name in UTF-8")
    refused(run("embed", "a.txt", "-o", "a.txt", "--shards", "2"), 2, "a file, not a folder")
    refused(run("embed", "a.txt", "-o", "no/where", "--shards", "2"), 3, "no folder 'no'; make it first")
    assert not fake


@pytest.mark.parametrize(
    "given",
    [
        ("--pooling", f"layer-{'9' * 5000}/avg"),
        ("--pooling", f"last/ditto:{'9' * 5000}-1"),
        ("--pooling", f"last/mask:{'9' * 5000}"),
        ("--transform", f"whitening:{'9' * 5000}"),
        ("--transform", f"spectral:{'9' * 5000}-1"),
        ("--prompt", f"deep-prefix:{'9' * 5000}"),
        ("--prompt", f"token-prepending:1-{'9' * 5000}:[X]"),
    ],
)
def test_numbers_that_python_does_not_read_are_refused_in_a_recipe(given):
    fields = {"--pooling": "pooling", "--transform": "transforms", "--prompt": "prompt"}
    option, value = given
    with pytest.raises(UsageError, match="more than 18 digits"):
        Recipe(**{fields[option]: (value,) if option == "--transform" else value})


def test_numbers_that_python_does_not_read_are_refused_elsewhere(run):
    refused(run("index", "build", "a.txt", "-o", "ix", "--memory", "9" * 5000), 2, "not a size")
    with pytest.raises(UsageError, match="unknown device"):
        choose_device(f"cuda:{'9' * 5000}")
