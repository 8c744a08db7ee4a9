"""One line of `train` that starts, goes on, or says that it is done."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

import promptcli as pc
from promptcli.training.methods import METHODS
from tests.comparing import refused
from tests.processes import Program
from tests.tiny import SENTENCES
from tests.training_files import write_graded_pairs
from tests.training_steps import stopped_at


@pytest.fixture
def line(bert_folder, here):
    """The words of a training that may be typed again and again."""
    (here / "text.txt").write_text("\n".join(SENTENCES * 3))
    write_graded_pairs(here / "pairs.tsv")
    words = ["train", "simcse", "--name", "mine", "--resume", "--data", "text.txt"]
    words += ["--on", "pairs.tsv", "--test", "pairs.tsv", "--backbone", bert_folder]
    return [*words, "--batch-size", 6, "--steps", 4, "--learning-rate", 0.01, "--offline"]


def test_the_same_line_starts_goes_on_and_says_done(line, run, monkeypatch, registry):
    with stopped_at(monkeypatch, 2):
        assert run(*line).code == 130
    second = run(*line)
    assert second.code == 0, second.err
    assert "resumed after step 2 of 4" in second.err
    made = registry.load("mine")
    third = run(*line, "--json")
    assert third.code == 0, third.err
    assert "done: model 'mine'" in third.err
    assert third.json["settings"]["steps"] == 4
    assert registry.load("mine").created == made.created
    assert run("train", "--resume", "mine", "--offline").code == 0
    again = run(*line, "--force").err
    assert "step 4/4" in again and "done:" not in again


def test_a_finished_run_is_done_for_the_same_options_only(line, run, tmp_path):
    write_graded_pairs(tmp_path / "other.tsv", SENTENCES[:6])
    assert run(*line).code == 0
    for name, value, said in (
        ("--temperature", 0.1, "temperature 0.05, not 0.1"),
        ("--seed", 3, "seed 42, not 3"),
        ("--steps", 5, "steps 4, not 5"),
        ("--data", "pairs.tsv:sentence1", "other content (data)"),
        ("--on", "other.tsv", "other content (development)"),
    ):
        changed = [*line, name, value]
        if name == "--data":
            changed = [value if word == "text.txt" else word for word in line]
        refused(run(*changed, "-q"), 2, f"trained with {said}", "force")


def test_several_runs_are_requeued_as_one(line, run, monkeypatch, registry):
    line[0] = "tune"
    line += ["--seeds", 2]
    with stopped_at(monkeypatch, 1, seed=1):
        assert run(*line).code == 130
    assert run(*line).code == 0
    made = registry.load("mine").created
    again = run(*line)
    assert again.code == 0, again.err
    assert "done: model 'mine'" in again.err
    assert registry.load("mine").created == made
    assert "run 2 of 2" in run(*line, "--force").err
    refused(run(*line[:-1], 3, "-q"), 2, "comes from other runs")
    refused(run(*line, "--temperature", 0.1, "-q"), 2, "temperature 0.05, not 0.1")


def test_a_model_that_was_not_trained_is_not_taken_for_a_finished_run(line, run):
    pc.load("last-avg", device="cpu").register("mine")
    refused(run(*line, "-q"), 2, "was not trained")


def test_a_name_alone_begins_nothing(run):
    method = next(iter(METHODS))
    refused(run("train", "--resume", method, "--offline", "-q"), 2, "no unfinished run")
    refused(run("train", "--resume", "nobody", "--offline", "-q"), 2, "no unfinished run")
    refused(run("train", "--resume", "-q"), 2, "the name of the run is missing")


def test_a_run_remembers_its_threads(line, run, monkeypatch):
    import torch

    seen = []
    with stopped_at(monkeypatch, 1):
        assert run("--threads", 2, *line).code == 130
    torch.set_num_threads(1)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    plain = torch.optim.AdamW.step

    def step(*given, **named):
        seen.append(torch.get_num_threads())
        return plain(*given, **named)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    assert run("train", "--resume", "mine", "--offline").code == 0
    assert set(seen) == {2}
    assert torch.get_num_threads() == 1


def ended_at_step_2():
    """Let the scheduler's time be over at step 2 of the training of this process."""
    from promptcli.training.step import TrainingStep

    plain = TrainingStep.gradients

    def gradients(trainer, step, *given):
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(trainer, step, *given)

    TrainingStep.gradients = gradients


COMMANDS = {
    "srun": 'exec "$@"',
    "scontrol": 'echo "$@" >> queue',
    "promptcli": 'printf "%s\\n" "$@" > words; exit "$CODE"',
}


def test_the_job_of_the_guide_is_requeued_and_ends(line, tmp_path, monkeypatch, registry):
    page = (Path(pc.__file__).parents[1] / "docs" / "scale.md").read_text(encoding="utf-8")
    jobs = [
        block for block in re.findall(r"```text\n(.*?)```", page, re.DOTALL) if "train" in block
    ]
    job = next(block for block in jobs if "scontrol requeue" in block)
    (tmp_path / "job.sh").write_text(job.replace("--threads 8", "--threads 1"))
    (tmp_path / "bin").mkdir()
    for name, words in COMMANDS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{words}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("CORPUS", "text.txt")
    monkeypatch.setenv("PAIRS", "pairs.tsv")
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    small = line[line.index("--test") :]
    for code, before in ((143, ended_at_step_2), (0, None)):
        monkeypatch.setenv("CODE", str(code))
        assert subprocess.run(["sh", "job.sh"], timeout=300, check=False).returncode == code
        program = Program(*Path("words").read_text().splitlines(), *small, before=before)
        _, said = program.communicate()
        assert program.returncode == code, said
        assert Path("queue").read_text() == "requeue 7_3\n"
    assert b"resumed after step 2 of 4" in said
    assert registry.load_manifest("simcse-3").provenance["trained"]["settings"]["seed"] == 3
