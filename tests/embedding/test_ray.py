"""Ray as a transport: the bytes of this machine's own parts, also if a worker is killed; a column of vectors."""

import os
from pathlib import Path

import numpy as np
import pytest

import promptcli as pc
from promptcli.data.vectors.part_folder import PartFolder
from promptcli.embedding import parts
from promptcli.models.entries import Entry
from tests.embed_fakes import FakeEncoder
from tests.embed_running import contents, fake_encoder, refused  # noqa: F401

ray = pytest.importorskip("ray", reason="extra ray")
pytest.importorskip("ray.data", reason="extra ray")
pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
EMBED = ("embed", "a.txt", "-o", "out", "--shards", "6")


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """A cluster of two workers and the CPU that stays free, within this machine."""
    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else a busy machine gives its actors no time
        ray.init(num_cpus=3, _node_ip_address="127.0.0.1", runtime_env=environment, **quiet)
    yield
    ray.shutdown()


class Job(parts.PartJob):
    """A job on the fake encoder that kills its process at shard 2, once; says which process made which part."""

    def make(self, shard, progress=lambda done: None):
        self.encoder = FakeEncoder()
        flag = Path(self.folder).parent / "died"
        if shard == 2 and not flag.exists():
            flag.touch()
            os.kill(os.getpid(), 9)
        with (Path(self.folder).parent / "made").open("a") as file:
            file.write(f"{shard}\n")
        return super().make(shard, progress)


def test_a_killed_worker_loses_nothing_and_makes_nothing_twice(run, monkeypatch):
    Path("a.txt").write_text("".join(f"line {number}\n" for number in range(20)))
    assert run(*EMBED, "-o", "here")[0] == 0
    assert run(*EMBED, "--shard", "4")[0] == 0
    monkeypatch.setattr(parts, "PartJob", Job)
    monkeypatch.setattr("promptcli.models.loading.entry_of", lambda model: Entry("fake", FakeEncoder().recipe))
    code, _, err = run(*EMBED, "--engine", "ray", "--workers", "3")
    assert code == 0, err
    assert "6 parts in out, 5 made in" in err
    assert Path("died").exists() and sorted(Path("made").read_text().split()) == ["0", "1", "2", "3", "5"]
    assert contents("out") == contents("here")
    assert [text for block in PartFolder(Path("out")).blocks() for text in block.texts][19] == "line 19"


def test_an_error_of_a_worker_is_one_line(run, monkeypatch):
    Path("a.jsonl").write_text('{"text": "one"}\n' * 5 + '{"text": 1}\n')
    monkeypatch.setattr(parts, "PartJob", Job)
    Path("died").touch()
    result = run("embed", "a.jsonl", "-o", "out", "--shards", "2", "--engine", "ray", "-q")
    refused(result, 2, "a.jsonl: line 6: 'text' is 1")


def test_a_column_of_a_ray_data_set(monkeypatch):
    encoder = pc.load(pc.RECIPES["last-avg"], device="cpu", dtype="float32")
    texts = ["A cat sleeps.", "Two dogs play.", ""]
    made = pc.embed_dataset(ray.data.from_items([{"text": text} for text in texts]), encoder)
    rows = {row["text"]: row["embedding"] for row in made.take_all()}
    assert np.allclose([rows[text] for text in texts], encoder.encode(texts), atol=1e-5)
