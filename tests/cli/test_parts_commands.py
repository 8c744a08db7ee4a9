"""``embed --shards`` and ``vectors``: what they write, print and refuse, on the fake encoder."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from promptcli.data.vectors import read_vectors
from promptcli.data.vectors.part_folder import part_name
from promptcli.embedding import part_job, workers
from promptcli.models.entries import Entry
from tests.embed_fakes import FakeEncoder, vector
from tests.embed_running import fake_encoder, refused  # noqa: F401
from tests.processes import context

LINES = [f"line {number}" for number in range(10)]
EMBED = ("embed", "a.txt", "-o", "out", "--shards", "4")


@pytest.fixture(autouse=True)
def text():
    Path("a.txt").write_text("".join(f"{line}\n" for line in LINES))


def contents(folder="out"):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_a_folder_is_made_and_gone_on_with(run):
    code, out, err = run(*EMBED)
    assert (code, out) == (0, "")
    assert err.startswith("10 vectors of 8 numbers in 4 parts in out, 4 made in ")
    wanted = contents()
    assert run(*EMBED)[2] == "10 vectors of 8 numbers in 4 parts in out, none made\n"
    Path("out", part_name(1, 4)).unlink()
    assert "1 made in" in run(*EMBED)[2]
    assert contents() == wanted
    told = json.loads(run(*EMBED, "--json")[1])
    assert (told["rows"], told["shards"], told["made"], told["finished"]) == (10, 4, [], True)
    assert run(*EMBED, "-q", "--force") == (0, "", "") and contents() == wanted


def test_shards_one_by_one(run):
    assert run(*EMBED)[0] == 0
    for shard, said in ((2, "1 of 4"), (0, "2 of 4"), (3, "3 of 4")):
        err = run(*EMBED[:3], "one", *EMBED[4:], "--shard", shard)[2]
        assert err.startswith(f"{said} parts are in one, 1 made in ") and err.endswith("; the last one finishes it\n")
    refused(run("vectors", "one", "--merge", "m.npy"), 4, "one is unfinished: 3 of 4 parts are there")
    assert "in 4 parts in one, 1 made" in run(*EMBED[:3], "one", *EMBED[4:], "--shard", 1)[2]
    assert contents("one") == contents()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((*EMBED, "--shard", "4"), "`shard` 4 is out of range; of `shards` 4 it is 0 to 3"),
        ((*EMBED, "--shard", "-1"), "`shard` -1 is out of range"),
        ((*EMBED, "--shard", "1", "--force"), "`force` would take away the parts of others"),
        ((*EMBED, "--shard", "1", "--workers", "2"), "leave out `workers`"),
        ((*EMBED, "--engine", "spark"), "unknown engine 'spark'; valid: local, ray"),
        ((*EMBED, "--address", "auto"), "`address` is of a Ray cluster"),
        (("embed", "a.txt", "--shard", "1"), "--shard needs --shards"),
        (("embed", "a.txt", "--workers", "1"), "--workers needs --shards"),
        (("embed", "a.txt", "--shards", "2"), "name it with -o FOLDER"),
        (("embed", "a.txt", "a.txt"), "give --shards N -o FOLDER"),
        (("embed", "s3://b/a.txt", "-o", "out", "--shards", "2", "--offline"), "which `offline` forbids"),
        (("embed", "-", "-o", "out", "--shards", "2"), "not from standard input"),
    ],
)
def test_what_does_not_go_together(run, fake, given, said):
    refused(run(*given), 2, said)
    assert not fake and not Path("out").exists()


def test_check_tells_every_fault(run):
    assert run(*EMBED)[0] == 0
    assert run("vectors", "out") == (0, "out: 10 vectors of 8 numbers in 4 parts, all whole\n", "")
    wanted = json.loads(run("vectors", "out", "--json")[1])
    assert (wanted["rows"], wanted["shards"], wanted["faults"]) == (10, 4, [])
    cut, flipped, stranger = (Path("out", part_name(shard, 4)) for shard in (0, 1, 2))
    cut.write_bytes(cut.read_bytes()[:-20])
    data = bytearray(flipped.read_bytes())
    data[60] ^= 1
    flipped.write_bytes(data)
    stranger.rename("out/part-00002-of-00005.parquet")
    Path("a.txt").write_text("another\n")
    code, out, err = run("vectors", "out")
    assert code == 4 and err == "promptcli: out: 5 faults\n"
    for line, said in zip(
        out.splitlines(),
        [
            "a.txt is not the file",
            "00005.parquet is none of the 4 parts",
            "00000-of-00004.parquet is not a whole Parquet file",
            "00001-of-00004.parquet: its sha256",
            "00002-of-00004.parquet is missing",
        ],
        strict=True,
    ):
        assert said in line
    assert len(json.loads(run("vectors", "out", "--json")[1])["faults"]) == 5
    refused(run("vectors", "nothing"), 3, "no folder of vectors in parts")


def test_check_compares_ids(run):
    Path("a.jsonl").write_text("".join(f'{{"id": {number % 8}, "text": "{number}"}}\n' for number in range(10)))
    assert run("embed", "a.jsonl", "-o", "out", "--shards", "3")[0] == 0
    assert "2 ids are those of other rows" in run("vectors", "out")[1]


@pytest.mark.parametrize("kind", [".npy", ".parquet", ".jsonl", ".safetensors"])
def test_merge(run, kind):
    assert run(*EMBED, "--normalize")[0] == 0
    code, out, err = run("vectors", "out", "--merge", f"m{kind}")
    assert (code, out, err) == (0, "", f"10 vectors in m{kind}\n")
    found = read_vectors(Path(f"m{kind}"))
    whole = np.stack([vector(line) for line in LINES])
    assert np.allclose(found.matrix, whole / np.linalg.norm(whole, axis=1, keepdims=True))
    assert list(found.ids) == list(range(10))
    assert found.texts == (LINES if kind in (".parquet", ".jsonl") else None)
    assert found.manifest["fingerprint"] == "f" * 64 and found.manifest["normalized"] is True
    refused(run("vectors", "out", "--merge", f"m{kind}"), 2, "`force`")
    assert json.loads(run("vectors", "out", "--merge", f"m{kind}", "--force", "--json")[1])["rows"] == 10


def test_half_floats(run):
    assert run(*EMBED, "--precision", "float16")[0] == 0
    assert run("vectors", "out", "--merge", "m.npy", "-q") == (0, "", "")
    found, half = read_vectors(Path("m.npy")), np.stack([vector(line) for line in LINES]).astype(np.float16)
    assert found.precision == "float16" and np.array_equal(found.matrix, half.astype(np.float32))
    assert np.load("m.npy").dtype == np.float16
    refused(run(*EMBED, "--precision", "float32"), 2, "begun with `precision` 'float16', not 'float32'")
    refused(run(*EMBED, "--precision", "int8"), 2, "`precision` int8 of parts is not allowed")


def test_sample(run):
    assert run(*EMBED, "--no-text")[0] == 0
    rows = [json.loads(line) for line in run("vectors", "out", "--sample", "4", "--json")[1].splitlines()]
    numbers = [row["row"] for row in rows]
    assert numbers == sorted(set(numbers)) == [row["id"] for row in rows] and len(numbers) == 4
    assert all(np.array_equal(np.float32(row["embedding"]), vector(LINES[row["row"]])) for row in rows)
    assert len(run("vectors", "out", "--sample", "10")[1].splitlines()) == 11
    refused(run("vectors", "out", "--sample", "11"), 2, "out has 10 rows, not 11")


# --- worker processes


class Job(part_job.PartJob):
    """A job on the fake encoder that kills its process, or runs out of memory, at shard 2: once, or each time."""

    def open(self, device):
        return FakeEncoder()

    def make(self, encoder, shard, progress=lambda done: None):
        end = self.entry.provenance.get("end")
        flag = Path(self.folder).parent / "died"
        if shard == 2 and end and not (end.endswith("once") and flag.exists()):
            flag.touch()
            if end.startswith("memory"):
                raise MemoryError
            os.kill(os.getpid(), 9)
        return super().make(encoder, shard, progress)


@pytest.fixture
def ending(monkeypatch):
    """Let workers come from the tests' own server of processes, and end as is said."""
    monkeypatch.setattr(workers, "CONTEXT", context())

    def set_end(end):
        entry = Entry("fake", FakeEncoder().recipe, provenance={"end": end})
        monkeypatch.setattr("promptcli.models.loading.entry_of", lambda model: entry)
        monkeypatch.setattr(part_job, "PartJob", Job)

    return set_end


@pytest.mark.parametrize("end", ["", "killed once", "memory once"])
def test_workers_make_the_same_bytes(run, ending, end):
    assert run(*EMBED, "-o", "here")[0] == 0
    ending(end)
    code, _, err = run(*EMBED, "--workers", "2")
    assert code == 0 and contents() == contents("here")
    why = {"": "", "killed once": "killed by signal 9, out of memory?", "memory once": "out of memory"}[end]
    assert (f"shard 2: its worker ended ({why}); a new one makes it again" in err) == bool(end)


def test_a_shard_whose_worker_dies_twice(run, ending):
    ending("killed")
    result = run(*EMBED, "--workers", "2")
    assert result[0] == 1 and len(result[2].splitlines()) == 2
    assert "promptcli: shard 2: its worker ended twice (killed by signal 9, out of memory?); " in result[2]
    assert not [name for name in contents() if name.endswith(".tmp")]


def test_too_little_memory_here(run, ending):
    ending("memory")
    refused(run(*EMBED), 1, "shard 2: out of memory; 2 of 4 parts are whole and stay")


def test_an_error_of_a_worker_is_one_line(run, ending):
    Path("a.jsonl").write_text('{"text": "one"}\n' * 5 + '{"text": 1}\n' + '{"text": "one"}\n' * 3)
    ending("")
    result = run("embed", "a.jsonl", "-o", "out", "--shards", "3", "--workers", "2")
    refused(result, 2, "a.jsonl: line 6: 'text' is 1")


def test_ray_is_asked_for_where_it_is_absent(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    refused(run(*EMBED, "--engine", "ray"), 2, "pip install 'promptcli[ray]'")


# --- the guide


@pytest.mark.parametrize("number", [0, 1], ids=["Slurm array", "loop"])
def test_scripts_of_the_guide_make_a_whole_folder(run, tmp_path, number):
    """The shell runs the scripts with a program that notes its arguments, in its order; then these are run here."""
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    script = re.findall(r"```text\n(#!/bin/sh\n.*?)```", page, flags=re.DOTALL)[number]
    Path("bin").mkdir()
    program = Path("bin", "promptcli")
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$*" >> noted\n')
    program.chmod(0o755)
    Path("a.txt").write_text("".join(f"line {number}\n" for number in range(64)))
    for task in range(64) if number == 0 else [0]:
        own = {"CORPUS": "a.txt", "FOLDER": "out", "SLURM_ARRAY_TASK_ID": str(task)}
        environment = {**os.environ, **own, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
        subprocess.run(["sh", "-c", script], env=environment, check=True)
    noted = Path("noted").read_text().splitlines()
    assert len(noted) == 64
    for line in noted:
        assert run(*line.split())[0] == 0
    assert run("vectors", "out")[1] == "out: 64 vectors of 8 numbers in 64 parts, all whole\n"
