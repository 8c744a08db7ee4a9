"""Several trainings by Optuna: all combinations, drawn trials, pruning, resuming and refusals."""

import dataclasses
import json
import statistics

import numpy as np
import pytest

import promptcli as pc
from promptcli.errors import PromptcliError
from promptcli.models.entries import Entry
from promptcli.plugins.tune.command import summary
from promptcli.plugins.tune.runs import Trial, Tuned
from promptcli.recipe import RECIPES
from promptcli.training import run as running
from promptcli.training.run import Trained
from promptcli.training.watching import DevScore
from tests.comparing import refusal, refused
from tests.training_steps import stopped_at

SPACE = {"temperature": "0.01..0.2", "batch_size": [32, 64], "steps": "10..40"}
CHEAP = {"method": "simcse", "name": "mine", "on": "demo:dev"}


@pytest.fixture
def trainings(monkeypatch):
    """Stand in for trainings: the nearer the temperature is to 0.05, the better; told in order."""
    told = []

    def train(inputs, processes, watchers, folder):
        config = inputs.config
        folder.mkdir(exist_ok=True)
        told.append(dict(config.settings))
        seed = config.settings.get("seed", 42)
        curve = []
        for step in (0, 10, 20):
            value = 50 + seed + step * (0.5 - abs(config.settings.get("temperature", 0) - 0.05))
            score = DevScore(step, None, value, True, 1.0, 10.0)
            curve.append(dataclasses.asdict(score))
            with (folder / "log.jsonl").open("a") as log:
                log.write(json.dumps(curve[-1]) + "\n")
            for watcher in watchers:
                watcher.on_score(score)
        shown = {"method": "simcse", "chosen_by": "demo:dev"}
        shown |= {"seed": seed, "steps": 20, "best_step": 20, "seconds": 1.0, "nearest_words": []}
        scores = {"untrained": {"demo:dev": 50.0}, "trained": {"demo:dev": curve[-1]["value"]}}
        scores |= {"begun": {}, "default": {}}
        facts = {**shown, "settings": {}, "scores": scores, "curve": curve, "group": config.group}
        return Trained(Entry(config.name, RECIPES["cls"], provenance={"trained": facts}))

    monkeypatch.setattr(running, "train_in_folder", train)
    monkeypatch.setattr(running, "warn_if_worse", lambda trained: None)
    return told


def test_every_combination_is_trained_and_the_best_kept(trainings, registry):
    found = pc.tune(sweep={"temperature": [0.1, 0.06, 0.1]}, seeds=2, **CHEAP)
    assert trainings == [
        {"temperature": temperature, "seed": seed} for temperature in (0.1, 0.06) for seed in (0, 1)
    ]
    assert found.trials[found.chosen].changes == {"temperature": 0.06, "seed": 1}
    assert registry.names().count("mine") == 1
    assert not [name for name in registry.names() if ".run-" in name]
    assert not [*registry.run_folder("mine").parent.glob("mine*")]
    runs = registry.load("mine").provenance["trained"]["runs"]
    assert [run["seed"] for run in runs] == [0, 1, 0, 1]
    assert [run["chosen"] for run in runs] == [False, False, False, True]
    *_, of_best = summary(found)
    values = [trial.value for trial in found.trials[2:]]
    assert of_best["std"] == pytest.approx(statistics.stdev(values), abs=0.01)
    assert of_best["mean"] == pytest.approx(statistics.fmean(values), abs=0.01)


def test_the_seeds_of_a_combination_are_one_row_wherever_the_seed_stands():
    trials = []
    for seed in (1, 2):
        for temperature in (0.05, 0.1):
            changes = {"seed": seed, "temperature": temperature}
            record = {"scores": [{"task": "dev", "trained": 100 * temperature + seed}]}
            trials.append(Trial(changes, "finished", [], record))
    rows = summary(Tuned(None, trials, 0, drawn=False))
    assert [row["changes"] for row in rows] == [{"temperature": 0.05}, {"temperature": 0.1}]
    assert [(row["seeds"], row["mean"]) for row in rows] == [(2, 6.5), (2, 11.5)]


def test_the_best_of_the_drawn_becomes_the_model(trainings, registry):
    found = pc.tune(sweep=SPACE, trials=3, **CHEAP)
    assert len(found.trials) == len(trainings) == 3
    for trial, changes in zip(found.trials, trainings, strict=True):
        assert trial.changes == changes
        assert 0.01 <= changes["temperature"] <= 0.2 and changes["batch_size"] in (32, 64)
        assert isinstance(changes["steps"], int) and 10 <= changes["steps"] <= 40
    values = [trial.value for trial in found.trials]
    assert found.chosen == values.index(max(values))
    facts = registry.load("mine").provenance["trained"]
    assert [trial["state"] for trial in facts["trials"]] == [t.state for t in found.trials]


@pytest.mark.parametrize("name", ["My%20Data", "a?b=c#d", "{x} '"])
def test_the_trials_are_in_the_folder_whatever_its_name(name, trainings, tmp_path, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_HOME", str(tmp_path / name))
    assert len(pc.tune(seeds=1, **CHEAP).trials) == 1
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == [name]


def test_a_trial_below_the_median_is_pruned(trainings):
    found = pc.tune(sweep={"temperature": "0.01..0.2"}, trials=9, **CHEAP)
    pruned = [trial for trial in found.trials if trial.state == "pruned"]
    assert pruned and all(trial.curve[-1]["step"] < 20 for trial in pruned)
    assert all(trial.state == "finished" for trial in found.trials[:5])  # of which the median is
    best = found.trials[found.chosen].changes["temperature"]
    assert abs(best - 0.05) < min(abs(trial.changes["temperature"] - 0.05) for trial in pruned)


@pytest.mark.parametrize(
    "asked", [{"sweep": SPACE, "trials": 3}, {"seeds": 3}], ids=["drawn", "seeds"]
)
def test_what_is_resumed_ends_as_what_was_not_stopped(asked, trainings, monkeypatch):
    whole = pc.tune(**asked, **CHEAP).trials
    real = running.train_in_folder

    def stopped(*given):
        if len(trainings) == 3 + 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(running, "train_in_folder", stopped)
    with pytest.raises(KeyboardInterrupt, match="tune --resume other` continues"):
        pc.tune(**asked, **CHEAP | {"name": "other"})
    with refusal("unfinished run"):
        pc.tune(**asked, **CHEAP | {"name": "other"})
    monkeypatch.setattr(running, "train_in_folder", real)
    trainings.clear()
    resumed = pc.tune(name="other", resume=True).trials
    new = [trial.changes for trial in resumed[2:]]
    again = [] if trainings[1:] == [] else [max(resumed, key=lambda trial: trial.value).changes]
    assert trainings == new + again  # that which was interrupted, the rest, and the best's weights
    assert [(trial.changes, trial.value) for trial in resumed] == [
        (trial.changes, trial.value) for trial in whole
    ]
    trainings.clear()
    again = pc.tune(name="other", resume=True)
    assert not trainings
    assert [trial.changes for trial in again.trials] == [trial.changes for trial in whole]


def test_a_trial_that_fails_does_not_end_the_others(trainings, monkeypatch):
    real = running.train_in_folder

    def train(inputs, *given):
        if inputs.config.name == "mine.run-1":
            raise PromptcliError("the loss at step 3 is not a number")
        return real(inputs, *given)

    monkeypatch.setattr(running, "train_in_folder", train)
    found = pc.tune(sweep=SPACE, trials=2, **CHEAP)
    assert [trial.state for trial in found.trials] == ["failed", "finished"]
    assert found.trials[0].value is None
    with refusal(r"no trial of 'mine' finished: the loss at step 3", PromptcliError):
        pc.tune(sweep=SPACE, trials=1, **CHEAP, force=True)


@pytest.mark.parametrize("more", [{}, {"force": True}])
def test_a_users_own_model_is_not_taken_for_a_run(more, trainings, registry):
    own = registry.save(dataclasses.replace(registry.load("mini-static"), name="mine.run-2"))
    with refusal(r"name: model 'mine\.run-2' has the name of a run"):
        pc.tune(seeds=2, keep_runs=True, **CHEAP, **more)
    assert not trainings
    assert len(pc.tune(seeds=2, **CHEAP, **more).trials) == 2
    assert registry.load("mine.run-2").created == own.created


def test_what_tries_every_combination_ends_none_of_them(trainings):
    sweep = {"temperature": [0.05, 0.05001, 0.05002, 0.05003, 0.05004, 0.5]}
    found = pc.tune(sweep=sweep, **CHEAP)
    assert {trial.state for trial in found.trials} == {"finished"}


@pytest.mark.parametrize(
    ("sweep", "trials", "parameter"),
    [
        ({"temperature": "0.2..0.01"}, 3, "sweep"),
        ({"temperature": "0..0.1:log"}, 3, "sweep"),
        ({"temperature": "0.1..x"}, 3, "sweep"),
        ({"temperature": "0.1..0.2"}, None, "sweep"),
        ({"schedule": "1..2"}, 3, "schedule"),
        ({"prefix_length": [1, 2]}, None, "prefix_length"),
        ({"batch_size": "0..8"}, 3, "batch_size"),
        ({}, 3, "trials"),
        ({}, None, "sweep"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(sweep, trials, parameter, trainings, registry):
    with refusal(parameter):
        pc.tune(sweep=sweep, trials=trials, **CHEAP)
    assert not trainings and not [*registry.run_folder("mine").parent.glob("*")]
    with refusal("unknown method 'simce'"):
        pc.tune("simce", sweep=sweep, trials=trials, name="mine")


def test_the_command_prints_the_table_of_trials(run, trainings):
    sweep = ["--sweep", "temperature=0.01..0.2", "--sweep", "learning-rate=1e-5..1e-3:log"]
    ran = run("tune", "simcse", "--name", "mine", *sweep, "--trials", 2)
    assert ran.code == 0, ran.err
    head, *rows = ran.out.splitlines()
    assert head.split() == [
        *("trial", "temperature", "learning-rate", "demo:dev", "best", "steps", "state")
    ]
    assert len(rows) == 2 and sum("*" in row for row in rows) == 1
    assert "saved as model 'mine'" in ran.err


def test_the_command_prints_mean_and_spread_over_seeds(run, trainings):
    words = ["tune", "simcse", "--name", "mine", "--seeds", 2, "--sweep", "temperature=0.1,0.06"]
    head, *rows = run(*words).out.splitlines()
    assert head.split() == [
        *("temperature", "task", "untrained", "mean", "std", "min", "max", "seeds")
    ]
    assert [row.split()[0] for row in rows] == ["0.1", "0.06"]
    told = run(*words, "--force", "--json").json
    assert [row["changes"]["seed"] for row in told["runs"]] == [0, 1, 0, 1]
    kept = run("models", "show", "mine", "--json").json
    assert len(kept["provenance"]["trained"]["runs"]) == 4
    for wrong in (["--sweep", "seed=1,2"], ["--sweep", "temperature"]):
        refused(run("tune", "simcse", *wrong), 2, "--s")


def test_real_runs_are_kept_and_resumed_to_the_same_vectors(bert_folder, registry, monkeypatch):
    text = [f"a dog runs {number}" for number in range(16)]
    given = {"data": text, "backbone": str(bert_folder), "batch_size": 4, "steps": 2}
    found = pc.tune("simcse", seeds=2, name="mine", on="demo:dev", keep_runs=True, **given)
    assert [trial.state for trial in found.trials] == ["finished", "finished"]
    assert {"mine.run-1", "mine.run-2"} < set(registry.names())
    runs = [pc.load(f"mine.run-{number}").encode(text) for number in (1, 2)]
    assert np.array_equal(pc.load("mine").encode(text), runs[found.chosen])
    # of a search that is resumed the best may have ended before
    last = 1 - found.chosen
    other = {"sweep": {"seed": [1 - last, last]}, "name": "other", "on": "demo:dev", **given}
    with stopped_at(monkeypatch, 1, seed=last), pytest.raises(KeyboardInterrupt):
        pc.tune("simcse", **other)
    with refusal("in memory"):
        pc.tune(name="other", resume=True)
    pc.tune("simcse", resume=True, **other)
    assert np.array_equal(pc.load("other").encode(text), runs[found.chosen])
    assert not [name for name in registry.names() if name.startswith("other.")]
