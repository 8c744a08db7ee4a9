"""mteb's evaluator on an encoder: the adapter without mteb, and mteb itself where it is
installed.
"""

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import promptcli
import promptcli as pc
from promptcli.data.tasks import TaskName, load_graded_tasks
from promptcli.evaluation.evaluator import score_encoders
from promptcli.evaluation.scores import Label
from promptcli.plugins.papers.mteb_tasks import MtebEncoder
from tests.senteval import write_pairs
from tests.tiny import SENTENCES


@pytest.fixture
def encoder(bert_folder):
    return pc.load(pc.Recipe(backbone=str(bert_folder), pooling="last/avg"), device="cpu")


def test_the_adapter_encodes_batches_and_compares(encoder):
    model = MtebEncoder(encoder, encoder.fingerprint, Label("/home/me/my model", "last-avg"))
    revision = f"{encoder.fingerprint[:40]}-{promptcli.__version__}"
    assert (model.name, model.revision) == ("promptcli/my-model-last-avg", revision)
    batches = [{"text": SENTENCES[:3], "other": [1, 2, 3]}, {"text": SENTENCES[3:8]}]
    vectors = model.encode(
        batches, task_metadata=None, hf_split="test", hf_subset="default", batch_size=2
    )
    np.testing.assert_array_equal(vectors, encoder.encode(SENTENCES[:8]))
    first, second = vectors[:4], vectors[4:]
    expected = np.array(
        [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in second] for a in first]
    )
    np.testing.assert_allclose(model.similarity(first, second), expected, atol=1e-6)
    np.testing.assert_allclose(
        model.similarity_pairwise(first, second), expected.diagonal(), atol=1e-6
    )


def test_without_mteb_one_line_names_the_extra(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.chdir(tmp_path)
    ran = run("eval", "--task", "mteb:STS12", "-m", "static-avg")
    assert (ran.code, ran.out) == (2, "") and ran.err.endswith(
        "pip install '.[mteb]' in the checkout\n"
    )
    assert not list(tmp_path.glob("mteb*"))


@pytest.fixture
def downstream(tmp_path):
    """SentEval's folder with a few pairs of STS-B."""
    sides = zip(SENTENCES, SENTENCES[1:] + SENTENCES[:1], strict=True)
    pairs = [(one, other, n % 5) for n, (one, other) in enumerate(sides)]
    for split in ("train", "dev", "test"):
        write_pairs(tmp_path / "data", "STS-B", pairs, split)
    return tmp_path / "data"


def test_mteb_s_main_score_is_ours(downstream, encoder, run, tmp_path, bert_folder):
    TaskResult = pytest.importorskip("mteb").TaskResult
    given = (
        "--backbone",
        bert_folder,
        "-m",
        "last-avg",
        "--data-dir",
        downstream,
        "--mteb-folder",
        tmp_path / "out",
    )
    [score] = run("eval", "--task", "mteb:STSBenchmark", *given, "--offline", "--json").json[
        "results"
    ]
    loaded = load_graded_tasks(downstream, [TaskName("STS-B")], "mteb").tasks
    ours = score_encoders([encoder], loaded)[0]
    assert score["value"] == pytest.approx(ours.value, abs=1e-4)
    result = TaskResult.from_disk(Path(score["file"]))
    assert result.dataset_revision == loaded[0].sha256()[:40]
    assert 100 * result.get_score() == pytest.approx(score["value"], abs=1e-4)
    drawn = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # noqa: NPY002
    [again] = pc.evaluate(
        encoder, "mteb:STSBenchmark", data_dir=downstream, mteb_folder=tmp_path / "out"
    )
    assert round(again.value, 4) == score["value"]
    # mteb seeds everything; who calls us keeps his own random numbers
    assert torch.equal(drawn[0], torch.get_rng_state()) and drawn[2] == random.getstate()
    assert np.array_equal(drawn[1], np.random.get_state()[1])  # noqa: NPY002
    wrong = run("eval", "--task", "mteb:STS112", *given, "--offline")
    assert wrong.code == 2 and "mteb has no task 'STS112'" in wrong.err and "STS12" in wrong.err
    lacking = run("eval", "--task", "mteb:STS12", *given[:4], "--offline")
    assert lacking.code == 3 and "data_dir" in lacking.err and "Traceback" not in lacking.err
