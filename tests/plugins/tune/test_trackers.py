"""Trackers: what a real TensorBoard receives, and which trackers are refused."""

import contextlib
import sys
import types
from importlib.machinery import ModuleSpec

import pytest
from tensorboard.summary.writer import event_file_writer

from promptcli.errors import UsageError
from promptcli.notes import without_network
from promptcli.plugins.tune import trackers
from promptcli.plugins.tune.trackers import Tracker
from promptcli.training.watching import TRACKERS, DevScore, WatchedRun, make_trackers
from tests.plugins.absent import delete_plugin
from tests.tiny import SENTENCES
from tests.training_files import write_graded_pairs


@contextlib.contextmanager
def reporting_to(name, run, facts):
    started = Tracker(name)
    started.begin(run, facts)
    yield started
    started.end()


@pytest.fixture
def words(bert_folder, here):
    """The options of a short training."""
    text = here / "text.txt"
    text.write_text("\n".join(f"{one} {other}" for one in SENTENCES for other in SENTENCES[:3]))
    pairs = write_graded_pairs(here / "pairs.tsv")
    few = ["--steps", 4, "--batch-size", 4, "--set", "eval-steps=2"]
    files = ["--data", text, "--on", pairs, "--test", pairs]
    return ["train", "simcse", "--backbone", bert_folder, *files, *few]


def events(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {
        tag: [(event.step, event.value) for event in read.Scalars(tag)]
        for tag in read.Tags()["scalars"]
    }


def test_tensorboard_is_told_all_of_every_run_of_a_group(run, words, home):
    several = ["--seeds", 2, "--name", "mine"]
    told = run("tune", *words[1:], *several, "--report-to", "tensorboard", "--offline")
    assert told.code == 0, told.err
    assert f"tensorboard reads the run in {home / 'trackers' / 'mine'}" in told.err
    records = run("models", "show", "mine", "--json").json["provenance"]["trained"]["runs"]
    for number, record in enumerate(records, start=1):
        folder = home / "trackers" / "mine" / f"mine.run-{number}"
        found = events(folder)
        curve = [(score["step"], score["value"]) for score in record["curve"]]
        assert found["development/spearman"] == [(s, pytest.approx(v, rel=1e-5)) for s, v in curve]
        steps = [step for step, _ in found["train/loss"]]
        assert steps == [1, 2, 3, 4]
        losses = [value for _, value in found["train/loss"]]
        assert sum(losses[2:]) / 2 == pytest.approx(record["curve"][-1]["loss"], rel=1e-5)
        rates = [value for _, value in found["train/learning_rate"]]
        assert rates[0] > rates[-1] > 0
        assert all(norm > 0 for _, norm in found["train/gradient_norm"])
        assert all(rate > 0 for _, rate in found["train/examples_per_second"])
        [settings] = folder.glob("*/hparams.yml")
        lines = settings.read_text().splitlines()
        assert f"seed: {number - 1}" in lines and "batch_size: 4" in lines
        assert "method: simcse" in lines


def test_a_resumed_run_adds_to_what_was_logged_and_a_new_one_hides_it(home, monkeypatch):
    # TensorBoard numbers the files of a process, and orders those of one second as texts
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    for resumed, steps, value in ((False, 3, 1.0), (True, 2, 2.0), (False, 2, 3.0)):
        with reporting_to("tensorboard", WatchedRun("mine", "mine", resumed), {}) as started:
            for step in range(1, steps):
                started.on_step(step, {"loss": value})
    assert events(home / "trackers" / "mine")["train/loss"] == [(1, 3.0)]


@pytest.fixture
def wandb(monkeypatch):
    """A module in the place of wandb, and what its runs received."""
    told = []

    class Run:
        def log(self, values, step, **_):
            told.append((step, values))

        def finish(self):
            told.append("finished")

    module = types.ModuleType("wandb")
    module.__spec__ = ModuleSpec("wandb", None)
    module.config = types.SimpleNamespace(update=lambda values, **_: told.append(values))

    def init(**given):
        told.append(given)
        return Run()

    module.init = init
    module.told = told
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_runs_of_one_training_are_a_group(wandb, tmp_path):
    run = WatchedRun("mine", "mine.run-2")
    settings = {"seed": 1, "template": ("[X] means [MASK] .",), "mine": None}
    with reporting_to("wandb", run, settings) as started:
        started.on_score(DevScore(0, None, 60.5, True, 0.0, None))
        started.on_step(1, {"loss": 0.5})
    assert wandb.told == [
        {"project": "promptcli", "group": "mine", "name": "mine.run-2"},
        {"seed": 1, "template": "[X] means [MASK] ."},
        (0, {"development/spearman": 60.5}),
        (1, {"train/loss": 0.5}),
        "finished",
    ]


def test_what_a_tracker_prints_is_no_result(run, words, wandb):
    begin = wandb.init

    def init(**given):
        print("* a tracker says hello")
        return begin(**given)

    wandb.init = init
    ran = run(*words, "--report-to", "wandb", "--json")
    assert ran.json
    assert "* a tracker says hello" in ran.err


def test_a_tracker_without_credentials_is_one_line_and_leaves_nothing(run, words, wandb, home):
    def init(**_):
        raise RuntimeError("No API key configured.\nUse `wandb login`")

    wandb.init = init
    ran = run(*words, "--report-to", "wandb")
    assert (ran.code, ran.out) == (2, "")
    announced, refused = ran.err.splitlines()[-2:]
    assert announced.endswith("reporting loss, scores and settings to wandb")
    assert "--report-to: wandb did not start: RuntimeError: No API key" in refused
    assert "log in to wandb" in refused and "Traceback" not in ran.err
    assert not [*home.glob("runs/*")] and not [*home.glob("models/*")]


def test_a_tracker_that_fails_does_not_end_the_training(tmp_path, wandb, notes):
    with reporting_to("wandb", WatchedRun("mine", "mine"), {}) as started:
        started._tracker.run.log = lambda *_, **__: 1 / 0
        started.on_step(1, {"loss": 0.5})
        started.on_step(2, {"loss": 0.4})
    assert sum("goes on without it" in line for line in notes) == 1


@pytest.mark.parametrize(
    ("given", "offline", "message"),
    [
        ("tensorbord", False, "did you mean tensorboard?"),
        ("mlflow", False, "mlflow is not installed here: pip install mlflow"),
        ("wandb", True, "uses the network, which offline=True forbids; without it: tensorboard"),
    ],
)
def test_a_tracker_that_cannot_be_is_refused(given, offline, message, wandb):
    with without_network(offline), pytest.raises(UsageError) as caught:
        make_trackers(["tensorboard", given])
    assert message in str(caught.value)


def test_every_tracker_is_of_accelerate():
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    run = WatchedRun("mine", "mine")
    for name, make in trackers.TRACKERS.items():
        assert type(make(run)) is LOGGER_TYPE_TO_CLASS[name]


def test_without_the_folder_a_tracker_is_missing_in_one_line(run, words, monkeypatch):
    delete_plugin("tune", monkeypatch, TRACKERS)
    ran = run(*words, "--report-to", "tensorboard")
    assert (ran.code, ran.out) == (2, "")
    assert "unknown tracker 'tensorboard'" in ran.err
