"""``embed --shards``: what it writes, prints and refuses, on the fake encoder."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from promptcli.data.vectors.part_folder import part_name
from tests.embed_running import fake_encoder, refused  # noqa: F401

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
        assert err.startswith(f"{said} parts exist in one, 1 made in ")
    assert "in 4 parts in one, 1 made" in run(*EMBED[:3], "one", *EMBED[4:], "--shard", 1)[2]
    assert contents("one") == contents()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((*EMBED, "--shard", "4"), " 4 it is 0 to 3"),
        ((*EMBED, "--shard", "-1"), " -1 is out of range"),
        ((*EMBED, "--shard", "1", "--force"), "makes one part in this process"),
        ((*EMBED, "--shard", "1", "--workers", "2"), "makes one part in this process"),
        ((*EMBED, "--engine", "spark"), "unknown engine 'spark'; valid: local, ray"),
        ((*EMBED, "--address", "auto"), " is of a Ray cluster"),
        (("embed", "a.txt", "--shard", "1"), "--shard needs --shards"),
        (("embed", "a.txt", "--workers", "1"), "--workers needs --shards"),
        (("embed", "a.txt", "--shards", "2"), "name it with -o FOLDER"),
        (("embed", "a.txt", "a.txt"), "give --shards N -o FOLDER"),
        (("embed", "s3://b/a.txt", "-o", "out", "--shards", "2", "--offline"), "is on another machine"),
        (("embed", "-", "-o", "out", "--shards", "2"), "not from standard input"),
    ],
)
def test_what_does_not_go_together(run, fake, given, said):
    refused(run(*given), 2, said)
    assert not fake and not Path("out").exists()


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
    assert pq.read_table("out")["text"].to_pylist() == [f"line {number}" for number in range(64)]
