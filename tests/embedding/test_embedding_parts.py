"""Vectors in parts: each complete or absent, the same bytes whatever the order, the process or the
interruptions.
"""

import contextlib
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from promptcli.data.vectors.part_folder import (
    PartFolder,
    is_part_folder,
    read_parts_manifest,
    total_report,
)
from promptcli.embedding import embed_parts, parts
from promptcli.encoder.encoder import build_encoder
from promptcli.errors import CheckFailedError, PromptcliError, UsageError
from promptcli.models import loading
from promptcli.notes import showing_stages
from promptcli.recipe import RECIPES
from tests.comparing import refusal
from tests.fake_commands import contents, embed
from tests.fake_encoder import FakeEncoder, vector
from tests.import_traps import imported_traps, write_traps
from tests.killing import in_a_process_that_dies
from tests.processes import context

SHARDS = 4
LINES = [f"line {number}" for number in range(11)]


@pytest.fixture
def texts(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in LINES[:7]))
    (tmp_path / "b.txt").write_text("".join(f"{line}\n" for line in LINES[7:]))
    return [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]


def test_the_parts_one_after_another_are_the_input(tmp_path, texts):
    folder = tmp_path / "out"
    assert not is_part_folder(folder)
    made = embed(folder, texts)
    assert (
        made.finished
        and made.made == [0, 1, 2, 3]
        and total_report(folder, made.manifest).rows == 11
    )
    assert is_part_folder(folder)
    blocks = list(PartFolder(folder).blocks(rows=2))
    assert [text for block in blocks for text in block.texts] == LINES
    assert [number for block in blocks for number in block.ids] == list(range(11))
    assert [block.row for block in blocks] == [0, 2, 4, 5, 7, 8, 10]
    assert np.array_equal(
        np.concatenate([block.vectors for block in blocks]), np.stack([vector(x) for x in LINES])
    )
    assert [file.rows for file in read_parts_manifest(folder).inputs] == [7, 4]
    table = pq.read_table(folder)  # as any program reads a Parquet data set
    assert table["text"].to_pylist() == LINES and table["id"].to_pylist() == list(range(11))


def test_bytes_do_not_depend_on_the_order_of_shards(tmp_path):
    lines = [" ".join(["word"] * (number % 9)) for number in range(40)]
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    encoder = build_encoder(RECIPES["prompt-denoised"], device="cpu", dtype="stored")
    embed(tmp_path / "at once", [tmp_path / "a.txt"], encoder=encoder)
    encoder.encode(["one two three", "one", "words of another length altogether"])
    for shard in (3, 1, 0, 2):
        made = embed(tmp_path / "out", [tmp_path / "a.txt"], shard=shard, encoder=encoder)
        assert made.finished == (shard == 2)
    assert contents(tmp_path / "out") == contents(tmp_path / "at once")


def test_a_process_may_die_at_any_step(tmp_path, texts):
    embed(tmp_path / "at once", texts)
    wanted = contents(tmp_path / "at once")
    for calls in range(0, 70, 9):
        folder = tmp_path / f"out{calls}"
        in_a_process_that_dies(calls, lambda folder=folder: embed(folder, texts))
        if is_part_folder(folder) and not all((folder / name).exists() for name in wanted):
            with refusal("unfinished", CheckFailedError):
                PartFolder(folder)
        assert embed(folder, texts).finished
        assert contents(folder) == wanted


def test_many_at_once_agree(tmp_path, texts):
    embed(tmp_path / "alone", texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "open_torch_encoder", lambda *_, **__: FakeEncoder())
        with ThreadPoolExecutor(2 * SHARDS) as pool:
            for shard in (*range(SHARDS), *range(SHARDS)):
                pool.submit(embed_parts, texts, tmp_path / "out", SHARDS, shard=shard)
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")


HALF = FakeEncoder()
HALF.provenance = {**HALF.provenance, "dtype": "bfloat16"}
OTHER = FakeEncoder()
OTHER.fingerprint = "e" * 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shards": 3}, "shards 4, not 3"),
        ({"normalize": True}, "normalize False, not True"),
        ({"precision": "float16"}, "precision 'float32', not 'float16'"),
        (
            {"encoder": OTHER},
            r"model 'fake \(ffffffffffff\)', not 'fake \(eeeeeeeeeeee\)'",
        ),
        ({"encoder": HALF}, "dtype 'float32', not 'bfloat16'"),
    ],
)
def test_a_folder_is_continued_as_it_was_begun(tmp_path, texts, change, message):
    embed(tmp_path / "out", texts, shard=0)
    before = contents(tmp_path / "out")
    with refusal(message):
        embed(tmp_path / "out", texts, **change)
    assert contents(tmp_path / "out") == before


def test_a_folder_is_continued_with_its_inputs(tmp_path, texts):
    embed(tmp_path / "out", texts, shard=0)
    with refusal("2 input files, not 1"):
        embed(tmp_path / "out", texts[:1])
    Path(texts[1]).write_text("another\n" * 4)
    with refusal(r"b\.txt is not the file"):
        embed(tmp_path / "out", texts)


def test_force_begins_again(tmp_path, texts):
    embed(tmp_path / "out", texts)
    assert embed(tmp_path / "out", texts, normalize=True, force=True).made == [0, 1, 2, 3]
    assert np.allclose(
        np.linalg.norm(next(PartFolder(tmp_path / "out").blocks()).vectors, axis=1), 1
    )


def test_force_does_not_begin_again_what_another_process_is_making(tmp_path, texts, monkeypatch):
    """The other process begins in the middle of a part."""
    encode, others = FakeEncoder.encode_windows, []

    def in_the_meantime(encoder, *given, **named):
        if not others:
            others.append(None)
            with refusal("another process is making its parts; wait until it ends"):
                embed(tmp_path / "out", texts, normalize=True, force=True)
            # parts of the same folder are not refused
            assert embed(tmp_path / "out", texts, shard=1).made == [1]
        return encode(encoder, *given, **named)

    monkeypatch.setattr(FakeEncoder, "encode_windows", in_the_meantime)
    assert embed(tmp_path / "out", texts).finished and others


def test_half_floats_are_kept_as_such(tmp_path, texts):
    embed(tmp_path / "out", texts, precision="float16")
    vectors = np.concatenate([block.vectors for block in PartFolder(tmp_path / "out").blocks()])
    assert np.array_equal(
        vectors, np.stack([vector(line) for line in LINES]).astype(np.float16).astype(np.float32)
    )


def test_folders_that_cannot_be_begun(tmp_path, texts):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "blank.txt").touch()
    for folder, names, shards, message in (
        (tmp_path / "out", texts, 12, "shards 12 of 11 rows; give at most 11"),
        (tmp_path / "full", texts, 2, "holds other files"),
        (tmp_path / "out", [tmp_path / "blank.txt"], 1, "of 0 rows"),
    ):
        with refusal(message):
            embed(folder, names, shards)
    assert not (tmp_path / "out").exists()


class Job(parts.PartJob):
    """A job on the fake encoder.

    Its process is killed, or fails, at shard 2 if the entry says so.
    """

    def make(self, shard, progress=lambda done: None):
        self.encoder = FakeEncoder()
        if shard == 2 and (end := self.model.model.provenance["end"]) == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif shard == 2 and isinstance(end, Exception):
            raise end
        return super().make(shard, progress)


@pytest.fixture
def forked(monkeypatch):
    monkeypatch.setattr(parts, "CONTEXT", context())  # the tests' own server of processes
    monkeypatch.setattr("promptcli.embedding.parts.PartJob", Job)


@pytest.mark.usefixtures("forked")
def test_workers_make_the_same_bytes(tmp_path, texts):
    embed(tmp_path / "here", texts)
    assert embed(tmp_path / "out", texts, workers=2).finished
    assert contents(tmp_path / "out") == contents(tmp_path / "here")


def test_workers_import_nothing_from_the_current_folder(tmp_path, monkeypatch):
    write_traps(tmp_path)
    monkeypatch.chdir(tmp_path)
    # built-in functions, so that the worker imports no torch
    monkeypatch.setattr(parts, "_start_worker", print)
    monkeypatch.setattr(parts, "_make", abs)
    made = []
    parts.make_by_processes("a job", [1], ["cpu"], made.append)
    assert made == [1] and not imported_traps(tmp_path)


@contextlib.contextmanager
def interrupting(name, steps):
    def advance(done):
        raise KeyboardInterrupt

    yield advance


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("end", "error", "message"),
    [
        (
            "kill",
            PromptcliError,
            r"a worker process died .* of 4 parts are complete and stay; .* run the same command",
        ),
        (UsageError("a.jsonl: line 6"), UsageError, "^a.jsonl: line 6$"),
        ("interrupt", KeyboardInterrupt, None),
    ],
)
def test_complete_parts_survive_the_end_of_the_run(tmp_path, texts, end, error, message):
    embed(tmp_path / "here", texts)
    wanted = contents(tmp_path / "here")
    with (
        pytest.raises(error, match=message),
        showing_stages(interrupting if end == "interrupt" else None),
    ):
        embed(tmp_path / "out", texts, model=end, workers=2)
    left = contents(tmp_path / "out").items()
    # the workers may have made all parts before the interrupt reaches them
    assert left < wanted.items() or (end == "interrupt" and left == wanted.items())
    assert embed(tmp_path / "out", texts).finished and contents(tmp_path / "out") == wanted


@pytest.mark.parametrize(
    "change", [{"shards": 10**15}, {"shards": 0}, {"rows": 10**15}, {"inputs": []}]
)
def test_numbers_of_a_manifest_that_cannot_be_are_refused_before_anything_is_counted_by_them(
    change, tmp_path, texts
):
    embed(tmp_path / "out", texts)
    path = tmp_path / "out" / "_manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    for use in (
        lambda: PartFolder(path.parent),
        lambda: embed(path.parent, texts),
    ):
        with refusal(r"shards of .* delete the folder and embed again", CheckFailedError):
            use()


def test_a_part_of_another_folder_is_refused(tmp_path, texts):
    embed(tmp_path / "out", texts, shard=0)
    embed(tmp_path / "other", texts, normalize=True)
    name = sorted(path.name for path in (tmp_path / "other").glob("*.parquet"))[1]
    (tmp_path / "out" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with refusal(f"{name} was made with another encoder", CheckFailedError):
        embed(tmp_path / "out", texts)


def test_a_damaged_part_is_made_again(tmp_path, texts):
    embed(tmp_path / "out", texts)
    before, damaged = contents(tmp_path / "out"), sorted((tmp_path / "out").glob("*.parquet"))[1]
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert embed(tmp_path / "out", texts).made == [1]
    assert contents(tmp_path / "out") == before
