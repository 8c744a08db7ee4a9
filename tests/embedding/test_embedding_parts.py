"""Vectors in parts: each whole or not there, the same bytes whatever was made before, in which process and order."""

import errno
import itertools
import json
import os
import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from promptcli.data.dialect import Fields
from promptcli.data.vectors.part_folder import MANIFEST, PLAN, PartFolder, is_part_folder, part_name
from promptcli.embedding import writing as embedding_parts
from promptcli.embedding.writing import counted_inputs, finish_folder, make_part, make_plan, missing_shards
from promptcli.encoder.encoder import Encoder
from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError
from promptcli.recipe import RECIPES
from promptcli.storage import files as stored_files
from tests.embed_fakes import FakeEncoder, vector
from tests.killing import in_a_process_that_dies

SHARDS = 4
LINES = [f"line {number}" for number in range(11)]


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in LINES[:7]))
    (tmp_path / "b.txt").write_text("".join(f"{line}\n" for line in LINES[7:]))
    return [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]


def embed(folder, names, shards=SHARDS, only=None, encoder=None, normalize=False):
    """Do what the command does, in this process."""
    encoder = encoder or FakeEncoder()
    inputs = counted_inputs(folder, names, Fields(), shards)
    plan = make_plan(folder, encoder, inputs, shards, normalize=normalize, with_text=True)
    todo = missing_shards(folder, plan, only)
    for shard in todo:
        make_part(folder, plan, inputs, encoder, shard)
    return finish_folder(folder, plan, len(todo))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_parts_one_after_another_are_the_input(tmp_path, texts):
    folder = tmp_path / "out"
    assert not is_part_folder(folder)
    assert embed(folder, texts)
    assert is_part_folder(folder)
    opened = PartFolder(folder)
    blocks = list(opened.blocks(rows=2))
    assert [text for block in blocks for text in block.texts] == LINES
    assert [found for block in blocks for found in block.ids] == list(range(11))
    assert [block.row for block in blocks] == [0, 2, 4, 5, 7, 8, 10]
    assert np.array_equal(np.concatenate([block.vectors for block in blocks]), np.stack([vector(x) for x in LINES]))
    assert [part.rows for part in opened.manifest.parts] == [2, 3, 3, 3]
    assert [file.rows for file in opened.manifest.inputs] == [7, 4]
    table = pq.read_table(folder)  # as any program reads a Parquet data set
    assert table["text"].to_pylist() == LINES and table["id"].to_pylist() == list(range(11))


def test_any_order_of_shards_gives_the_same_bytes(tmp_path, texts):
    embed(tmp_path / "whole", texts)
    wanted = contents(tmp_path / "whole")
    for number, order in enumerate(itertools.islice(itertools.permutations(range(SHARDS)), 0, 24, 7)):
        folder = tmp_path / f"out{number}"
        finished = [embed(folder, texts, only=shard) for shard in order]
        assert finished == [False, False, False, True]
        assert contents(folder) == wanted


def test_bytes_do_not_depend_on_the_shards_made_before(tmp_path):
    lines = [" ".join(["word"] * (number % 9)) for number in range(40)]
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    encoder = Encoder.from_recipe(RECIPES["prompt-denoised"], device="cpu")
    embed(tmp_path / "whole", [str(tmp_path / "a.txt")], encoder=encoder)
    wanted = contents(tmp_path / "whole")
    encoder.encode(["one two three", "one", "words of another length altogether"])
    for shard in (3, 1, 0, 2):
        embed(tmp_path / "out", [str(tmp_path / "a.txt")], only=shard, encoder=encoder)
    assert contents(tmp_path / "out") == wanted


def test_a_process_may_die_at_any_step(tmp_path, texts):
    embed(tmp_path / "whole", texts)
    wanted = contents(tmp_path / "whole")
    for calls in range(0, 70, 9):
        folder = tmp_path / f"out{calls}"
        in_a_process_that_dies(calls, lambda folder=folder: embed(folder, texts))
        if folder.exists() and not (folder / MANIFEST).exists():
            with pytest.raises((CheckFailedError, NotFoundError)):
                PartFolder(folder)
        assert embed(folder, texts)
        assert contents(folder) == wanted
    assert in_a_process_that_dies(99, lambda: embed(tmp_path / "out", texts)) == 0


def test_many_at_once_agree(tmp_path, texts):
    embed(tmp_path / "whole", texts)
    finished = []
    threads = [
        threading.Thread(target=lambda shard=shard: finished.append(embed(tmp_path / "out", texts, only=shard)))
        for shard in (*range(SHARDS), *range(SHARDS))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert any(finished) and contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_part_cut_short_is_made_again(tmp_path, texts):
    embed(tmp_path / "out", texts)
    wanted = contents(tmp_path / "out")
    path = tmp_path / "out" / part_name(2, SHARDS)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckFailedError, match=r"of-00004.parquet is not a whole Parquet file .* run the same"):
        list(PartFolder(tmp_path / "out").blocks())
    assert embed(tmp_path / "out", texts)
    assert contents(tmp_path / "out") == wanted


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shards": 3}, "begun with `shards` 4, not 3"),
        ({"normalize": True}, "begun with `normalize` False, not True"),
        ({"encoder": "other"}, "begun with the encoder 'ffffffffffff', not 'eeeeeeeeeeee'"),
        ({"encoder": "half"}, "begun with `dtype` 'float32', not 'bfloat16'"),
    ],
)
def test_a_folder_is_gone_on_with_as_it_was_begun(tmp_path, texts, change, said):
    embed(tmp_path / "out", texts, only=0)
    if "encoder" in change:
        encoder = FakeEncoder()
        if change["encoder"] == "other":
            encoder.fingerprint = "e" * 64
        else:
            encoder.provenance = {**encoder.provenance, "dtype": "bfloat16"}
        change = {"encoder": encoder}
    before = contents(tmp_path / "out")
    with pytest.raises(UsageError, match=said):
        embed(tmp_path / "out", texts, **change)
    assert contents(tmp_path / "out") == before


def test_an_input_that_changed(tmp_path, texts):
    embed(tmp_path / "out", texts, only=0)
    Path(texts[1]).write_text("another\n" * 4)
    with pytest.raises(UsageError, match=r"b\.txt is not the file that .*out was begun with"):
        embed(tmp_path / "out", texts)
    with pytest.raises(UsageError, match="begun with 2 input files, not 1"):
        embed(tmp_path / "out", texts[:1])


def test_a_part_of_another_recipe(tmp_path, texts):
    embed(tmp_path / "out", texts, only=0)
    embed(tmp_path / "other", texts, normalize=True)
    name = part_name(1, SHARDS)
    (tmp_path / "out" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(CheckFailedError, match=f"{name} was made with another recipe"):
        embed(tmp_path / "out", texts)


def test_what_no_folder_can_be_made_of(tmp_path, texts):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "blank.txt").touch()
    for folder, names, shards, said in (
        (tmp_path / "out", texts, 12, "`shards` 12 of 11 rows; give at most 11"),
        (tmp_path / "full", texts, 2, "holds other files"),
        (tmp_path / "out", [str(tmp_path / "blank.txt")], 1, "of 0 rows"),
    ):
        with pytest.raises(UsageError, match=said):
            embed(folder, names, shards)
    assert not (tmp_path / "out").exists()


def test_a_full_disk_in_the_middle(tmp_path, texts, monkeypatch):
    embed(tmp_path / "whole", texts)
    folder, real = tmp_path / "out", embedding_parts.embed_stream
    calls = iter(range(100))

    def full(*given, **named):
        report = real(*given, **named)
        if next(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return report

    monkeypatch.setattr(embedding_parts, "embed_stream", full)
    with pytest.raises(PromptcliError, match=r"disk full: .*part-00002.* could not be written; 2 of 4 parts"):
        embed(folder, texts)
    assert sorted(contents(folder)) == [PLAN, part_name(0, SHARDS), part_name(1, SHARDS)]
    assert embed(folder, texts)
    assert contents(folder) == contents(tmp_path / "whole")


def test_the_plan_and_the_manifest_are_json_without_times(tmp_path, texts):
    embed(tmp_path / "out", texts)
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest["shards"] == len(manifest["parts"]) == SHARDS and manifest["rows"] == 11
    assert manifest["inputs"][0]["sha256"] == stored_files.sha256(Path(texts[0]))
