"""Ray as a transport: the bytes of this machine's own parts, also if a worker is killed; a column
of vectors in a Ray data set.
"""

import importlib.util
import os
import re
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

import promptcli as pc
from promptcli.data.vectors.part_folder import PartFolder
from promptcli.embedding import parts
from promptcli.errors import UsageError
from promptcli.plugins.cluster import ray_engine
from tests.comparing import refusal, refused
from tests.fake_commands import contents
from tests.import_traps import imported_traps, write_traps

if importlib.util.find_spec("ray") is None:
    pytest.skip("extra ray", allow_module_level=True)
ray = ray_engine.load_ray(None)  # as the program does: else it listens to other machines

ROOT = Path(__file__).parents[3]  # of the checkout: a folder of tests would be the module select
#: By a model without torch, which every worker would import.
EMBED = ("embed", "a.txt", "--shards", "5", "-m", "mini-static", "-q")


@pytest.fixture(scope="module")
def trapped(tmp_path_factory):
    """Run a cluster of this machine, as `embed` starts it, from a folder of traps."""
    folder = tmp_path_factory.mktemp("trapped")
    write_traps(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)  # the workers import tests
        with ray_engine.connected(None):
            session = Path(ray.nodes()[0]["ObjectStoreSocketName"]).parents[2]
            yield folder
        assert not session.exists()


@pytest.fixture
def place(trapped, here):
    Path("a.txt").write_text("".join(f"line {number}\n" for number in range(20)))


def wait_for(path):
    limit = time.monotonic() + 300
    while not path.exists() and time.monotonic() < limit:
        time.sleep(0.01)


class Job(parts.PartJob):
    """A job of two processes, one of which is killed.

    Shard 0 is made while shard 1 is, and the process of shard 2 dies once.
    """

    def make(self, shard, progress=lambda done: None):
        beside = Path(self.folder).parent
        if shard == 0:
            wait_for(beside / "began-1")
        if shard == 2 and not (beside / "began-2").exists():
            (beside / "began-2").touch()
            os.kill(os.getpid(), 9)
        (beside / f"began-{shard}").touch()
        with (beside / "made").open("a") as file:
            file.write(f"{shard}\n")
        return super().make(shard, progress)


def test_a_killed_worker_loses_nothing_and_makes_nothing_twice(place, run, trapped, monkeypatch):
    assert run(*EMBED, "-o", "here").code == 0
    assert run(*EMBED, "-o", "out", "--shard", "4").code == 0
    monkeypatch.setattr(parts, "PartJob", Job)
    ran = run(*EMBED[:-1], "-o", "out", "--engine", "ray", "--workers", "2")
    assert ran.code == 0, ran.err
    assert "out: 20 vectors of 256 dimensions in 5 parts (4 new, " in ran.err
    assert sorted(Path("made").read_text().split()) == ["0", "1", "2", "3"]
    assert Path("began-2").exists()
    assert contents("out") == contents("here")
    texts = [text for block in PartFolder(Path("out")).blocks() for text in block.texts]
    assert texts == [f"line {number}" for number in range(20)]
    assert not imported_traps(trapped)


class FailingJob(parts.PartJob):
    def make(self, shard, progress=lambda done: None):
        raise UsageError(f"a.jsonl: line {shard}")


def test_an_error_of_a_worker_is_one_line(place, run, monkeypatch):
    monkeypatch.setattr(parts, "PartJob", FailingJob)
    ran = run(*EMBED, "-o", "out", "--engine", "ray", "--workers", "1")
    refused(ran, 2, "a.jsonl: line 0")
    gave_up = ray_engine._error_of_task(ray.exceptions.WorkerCrashedError())
    assert re.match(
        r"Ray gave up \(WorkerCrashedError: .*run the same command again$", str(gave_up)
    )


def test_a_ray_data_set_gets_a_column_of_vectors(trapped):
    texts = ["A cat sleeps.", "Two dogs play.", None]
    encoder = pc.load("mini-static", device="cpu")
    rows = [{"text": text, "n": row} for row, text in enumerate(texts)]
    data = ray.data.from_items(rows, override_num_blocks=2)
    made = pc.embed_dataset(data, encoder)
    rows = sorted(made.take_all(), key=lambda row: row["n"])
    assert [row["text"] for row in rows] == texts
    vectors = np.array([row["embedding"] for row in rows], np.float32)
    assert np.allclose(vectors, encoder.encode([*texts[:2], ""]), atol=1e-5)
    assert not imported_traps(trapped)


def test_a_session_is_private_and_within_this_machine(trapped):
    context = ray.get_runtime_context()
    assert context.gcs_address.startswith("127.0.0.1:")
    assert os.environ["RAY_AUTH_MODE"] == "token"
    session = Path(ray.nodes()[0]["ObjectStoreSocketName"]).parents[1]
    assert session.parents[1].stat().st_mode & 0o777 == 0o700


def test_an_address_where_no_cluster_answers_is_refused(place, run, monkeypatch):
    monkeypatch.setattr(ray_engine, "_ANSWER_TIMEOUT_S", 300)  # of a busy machine
    there = ray.get_runtime_context().gcs_address
    with refusal(r"address: .*connected to Ray"):
        ray_engine.RayEngine().check(there)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    ray_engine.RayEngine().check(there)
    line = (*EMBED, "-o", "out", "--engine", "ray", "--address")
    refused(run(*line, "ray://x"), 2, "--address: 'ray://x'", "give the HOST:PORT")

    def waits(command, *, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(ray_engine.subprocess, "run", waits)
    refused(
        run(*line, "127.0.0.1:9"), 2, "--address: '127.0.0.1:9': no Ray answered in 300 s; give"
    )
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--shards", "2", "--engine", "rya"), "unknown engine 'rya'; valid: local, ray; did you"),
        (
            ("--shards", "2", "--address", "auto"),
            "--address: is for a Ray cluster; also give --engine ray",
        ),
        (("--engine", "ray"), "--address need --shards"),
        (("--shards", "2", "--shard", "1", "--engine", "ray"), "leave out --workers N"),
    ],
)
def test_options_that_do_not_go_together_are_refused(words, message, run, here):
    Path("a.txt").write_text("one\ntwo\n")
    refused(run("embed", "a.txt", "-o", "out", *words), 2, message)


def test_without_the_extra_ray_is_named(run, here, monkeypatch):
    Path("a.txt").write_text("one\ntwo\n")
    monkeypatch.setattr("promptcli.errors.missing_libraries", lambda *names: list(names))
    ran = run("embed", "a.txt", "-o", "out", "--shards", "2", "--engine", "ray")
    refused(ran, 2, "this needs ray, not installed here: pip install", "[ray]")
