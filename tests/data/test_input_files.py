"""Many input files as one run of rows: any range of them is what a walk over all gives, whatever
the format.
"""

import gzip
import json
import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from promptcli.data.input_files import find_inputs
from promptcli.data.rows import open_rows
from promptcli.data.vectors.formats import EmbedSettings
from promptcli.data.vectors.part_folder import (
    check_ids_agree,
    check_same_files,
    count_input,
    read_range,
)
from promptcli.errors import NotFoundError, UsageError
from tests.comparing import refusal
from tests.source_files import records


def read_rows(files, start, stop):
    return [
        (row["id"], row["text"])
        for batch in read_range(files, start, stop, "it")
        for row in records(batch)
    ]


TEXTS = st.lists(st.text('ab ,"\n\u2028\x0b\x85é', max_size=6), min_size=1, max_size=20)


def write(path, texts):
    """Write texts in the format of a path's extension.

    Line ends inside a text only if the format has room.
    """
    kind = path.suffixes[0]
    if kind == ".parquet":
        pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path, row_group_size=3)
        return texts
    if kind == ".jsonl":
        content = "".join(json.dumps({"n": 1, "text": text}) + "\n" for text in texts)
    elif kind == ".csv":
        cells = [text.replace('"', '""') for text in texts]
        content = "n,text\n" + "".join(f'1,"{cell}"\n' for cell in cells)
    else:
        texts = [text.replace("\n", "").replace('"', "") for text in texts]
        head, start = ("\ufeffn\ttext\n", "1\t") if kind == ".tsv" else ("", "")
        content = head + "".join(f"{start}{text}\n" for text in texts)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return texts


PLAIN = [".txt", ".jsonl", ".csv", ".tsv"]


@pytest.mark.parametrize("suffix", [".parquet", *PLAIN, *(f"{kind}.gz" for kind in PLAIN)])
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(one=TEXTS, two=TEXTS, data=st.data())
def test_every_range_is_that_of_the_walk_over_all(tmp_path, suffix, one, two, data):
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    wanted = [
        text for path, texts in zip(paths, (one, two), strict=True) for text in write(path, texts)
    ]
    files = [count_input(str(path), EmbedSettings()) for path in paths]
    with open_rows(paths[0]) as rows:
        assert list(rows.texts()) == wanted[: files[0].rows]
    assert sum(file.rows for file in files) == len(wanted)
    start = data.draw(st.integers(0, len(wanted)))
    stop = data.draw(st.integers(start, len(wanted)))
    assert read_rows(files, start, stop) == list(enumerate(wanted))[start:stop]


def test_ids_of_a_column_and_blank_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"id": 7, "text": "one"}\n{"id": "x", "text": ""}\n\n\n')
    file = count_input(str(path), EmbedSettings())
    check_ids_agree([file])
    assert file.rows == 2
    assert [identifier for identifier, _ in read_rows([file], 1, 2)] == ["x"]
    (tmp_path / "b.txt").write_text("one\n")
    with refusal(r"a\.jsonl has ids \(column 'id'\) and .*b\.txt has none"):
        check_ids_agree([file, count_input(str(tmp_path / "b.txt"), EmbedSettings())])


def test_ranges_of_rows_that_are_left_out(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": 1}\n{"text": "b"}\n{broken\n{"text": "d"}\n{"text": "e"}\n{broken\n')
    files = [count_input(str(path), EmbedSettings(skip_bad=True))] * 2
    wanted = list(enumerate("bdebde"))
    assert read_rows(files, 0, 6) == wanted
    assert [read_rows(files, row, row + 2) for row in range(5)] == [
        wanted[row : row + 2] for row in range(5)
    ]


def test_names_with_stars_and_folders_are_their_files(here):
    (here / "set" / "_hidden").mkdir(parents=True)
    (here / "empty").mkdir()
    for name in ("b.txt", "a.txt", "set/2.parquet", "set/1.parquet", "set/_hidden/3.parquet"):
        (here / name).write_text("x\n")
    assert find_inputs(["*.txt"]) == ["a.txt", "b.txt"]
    assert find_inputs(["b.txt", "set"]) == ["b.txt", "set/1.parquet", "set/2.parquet"]
    for names, error, message in (
        (["*.md"], NotFoundError, "no file matches"),
        (["-"], UsageError, "standard input"),
        (["a.txt", "*.txt"], UsageError, "a.txt is given twice"),
        (["c.txt"], NotFoundError, "cannot be opened"),
        (["empty"], NotFoundError, r"no file matches .*\.parquet"),
    ):
        with pytest.raises(error, match=message):
            find_inputs(names)


def test_a_changed_file_is_found_and_a_copied_one_is_not_blamed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n")
    file = count_input(str(path), EmbedSettings())
    os.utime(path, ns=(1, 1))
    assert check_same_files([file], [str(path)], "it")[0].sha256 == file.sha256
    path.write_text("one\ntwx\n")
    with refusal(r"a\.txt is not the file that it was started with"):
        read_rows([file], 0, 1)
    with refusal("started with 1 input file, not 2"):
        check_same_files([file], [str(path), str(path)], "it")


def test_files_are_read_from_file_systems_of_fsspec():
    with fsspec.open("memory://shards/a.txt", "wb") as file:
        file.write(b"one\ntwo\n")
    names = find_inputs(["memory://shards/*.txt"])
    assert names == ["memory://shards/a.txt"]
    assert read_rows([count_input(names[0], EmbedSettings())], 1, 2) == [(1, "two")]
    with refusal("no such file", NotFoundError):
        find_inputs(["memory://shards/b.txt"])
    with refusal("nowhere", NotFoundError):
        find_inputs(["nowhere://a.txt"])
