"""The search over settings: what optuna draws, prunes and goes on with, and what is refused."""

import dataclasses
import json

import pytest

import promptcli as pc
from promptcli import training
from promptcli.errors import PromptcliError, UsageError
from promptcli.models.entries import Entry
from promptcli.models.loading import open_registry
from promptcli.plugins.tune.job import drawn_from
from promptcli.recipe import RECIPES
from promptcli.training import several_runs
from promptcli.training.ranges import Range
from promptcli.training.trained import Trained
from promptcli.training.watching import DevScore
from tests.embed_running import refused

SPACE = {"temperature": "0.01..0.2", "batch_size": [32, 64], "steps": Range(10, 40)}
CHEAP = {"method": "simcse", "name": "mine", "on": "demo:dev"}


@pytest.fixture
def trainings(monkeypatch):
    """Stand in for trainings: the nearer the temperature is to 0.05, the better; told in order."""
    told = []

    def train(plan, processes, watchers):
        job = plan.job
        registry = open_registry()
        folder = registry.run_folder(job.name)
        folder.mkdir(parents=True, exist_ok=True)
        told.append(dict(job.changes))
        curve = []
        for step in (0, 10, 20):
            value = 50 + step * (0.5 - abs(job.changes["temperature"] - 0.05))
            score = DevScore(step, None, value, True, 1.0, 10.0)
            curve.append(dataclasses.asdict(score))
            with (folder / "log.jsonl").open("a") as log:
                log.write(json.dumps(curve[-1]) + "\n")
            for watcher in watchers:
                watcher.on_score(score)
        shown = {"method": "simcse", "chosen_by": "demo:dev", "tasks": ["demo:dev"]}
        shown |= {"seed": 42, "steps": 20, "best_step": 20, "seconds": 1.0, "nearest_words": []}
        facts = {**shown, "untrained": [{"value": 50.0}], "curve": curve}
        entry = Entry(job.name, RECIPES["cls"], provenance={"trained": facts})
        entry = dataclasses.replace(entry, scores=[{"value": curve[-1]["value"]}])
        registry.save(entry)
        return Trained(entry)

    monkeypatch.setattr(several_runs, "carry_out", train)
    return told


def test_the_best_of_the_trials_becomes_the_model(trainings, registry):
    found = pc.train_search(SPACE, 4, **CHEAP)
    assert len(found.trials) == len(trainings) == 4
    for trial, changes in zip(found.trials, trainings, strict=True):
        assert trial.changes == changes
        assert float(f"{changes['temperature']:.4g}") == changes["temperature"]
        assert 0.01 <= changes["temperature"] <= 0.2 and changes["batch_size"] in (32, 64)
        assert isinstance(changes["steps"], int) and 10 <= changes["steps"] <= 40
    values = [trial.value for trial in found.trials]
    assert found.chosen == values.index(max(values))
    assert registry.names().count("mine") == 1
    assert not [name for name in registry.names() if ".run-" in name]
    assert not [*registry.run_folder("mine").parent.glob("mine*")]
    facts = registry.load("mine").provenance["trained"]
    assert [trial["state"] for trial in facts["trials"]] == [t.state for t in found.trials]
    assert sum(run["chosen"] for run in facts["runs"]) == 1


@pytest.mark.parametrize("name", ["My%20Data", "a?b=c#d", "100%", "{x}", "a b'"])
def test_the_trials_are_in_the_folder_whatever_its_name(name, trainings, tmp_path, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_HOME", str(tmp_path / name))
    found = pc.train_search({"temperature": "0.01..0.2"}, 1, **CHEAP)
    assert len(found.trials) == 1
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == [name]


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"temperature": "-1..0.1"}, "temperature"),
        ({"batch_size": [32, 0]}, "batch_size"),
        ({"objective": "1..2"}, "no range"),
    ],
)
def test_what_a_search_begins_with_is_checked_in_the_whole_space(space, said):
    job = training.TrainJob(method="simcse", on="demo:dev")
    with pytest.raises(UsageError, match=said):
        training.describe_several([job], drawn_from(space))
    assert training.describe_several([job], {"steps": [1, 2]})["method"] == "simcse"


def test_a_value_that_is_given_twice_is_drawn_as_one():
    assert drawn_from({"steps": [1, 1, 2]}) == {"steps": [1, 2]}


def test_a_trial_below_the_median_is_pruned(trainings):
    found = pc.train_search({"temperature": "0.01..0.2"}, 9, **CHEAP)
    pruned = [trial for trial in found.trials if trial.state == "pruned"]
    assert pruned and all(trial.curve[-1]["step"] < 20 for trial in pruned)
    assert all(trial.state == "finished" for trial in found.trials[:5])  # of which the median is
    best = found.trials[found.chosen].changes["temperature"]
    assert abs(best - 0.05) < min(abs(trial.changes["temperature"] - 0.05) for trial in pruned)


def test_a_search_that_is_resumed_draws_what_an_unbroken_one_draws(trainings, monkeypatch):
    whole = pc.train_search(SPACE, 5, **CHEAP).trials
    real = several_runs.carry_out

    def stopped(*given):
        if len(trainings) == 5 + 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(several_runs, "carry_out", stopped)
    with pytest.raises(KeyboardInterrupt, match="train --resume other` continues the search"):
        pc.train_search(SPACE, 5, **CHEAP | {"name": "other"})
    with pytest.raises(UsageError, match="unfinished run; `resume` it"):
        pc.train_search(SPACE, 5, **CHEAP | {"name": "other"})
    monkeypatch.setattr(several_runs, "carry_out", real)
    trainings.clear()
    resumed = pc.train_search(SPACE, 5, **CHEAP | {"name": "other"}, resume=True).trials
    assert len(trainings) == 2  # the one that was interrupted, and the rest
    assert [trial.to_dict() for trial in resumed] == [trial.to_dict() for trial in whole]


def test_a_trial_that_fails_does_not_end_the_search(trainings, monkeypatch):
    real = several_runs.carry_out

    def train(plan, *given):
        if plan.job.name == "mine.run-1":
            trainings.append({})
            raise PromptcliError("the loss at step 3 is not a number")
        return real(plan, *given)

    monkeypatch.setattr(several_runs, "carry_out", train)
    found = pc.train_search(SPACE, 3, **CHEAP)
    assert [trial.state for trial in found.trials] == ["failed", "finished", "finished"]
    assert found.trials[0].value is None
    with pytest.raises(PromptcliError, match=r"no trial of 'mine' finished: the loss at step 3"):
        pc.train_search(SPACE, 1, **CHEAP, force=True)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"temperature": "0.2..0.01"}, r"its ends are swapped; give 0\.01\.\.0\.2"),
        ({"temperature": "0.1..0.1"}, "is one value"),
        ({"temperature": "0..0.1:log"}, "an end above 0"),
        ({"temperature": "0.1..x"}, r"give LOW\.\.HIGH or LOW\.\.HIGH:log"),
        ({"temperature": "0.1..0.2:lin"}, r"give LOW\.\.HIGH or LOW\.\.HIGH:log"),
        ({"schedule": "1..2"}, "schedule takes no range"),
        ({"prefix_length": "1..2"}, "has no setting prefix-length"),
        ({"batch_size": "0..8"}, "batch"),
        ({}, "give `space`"),
    ],
)
def test_what_is_refused(space, message, trainings, registry):
    with pytest.raises(UsageError, match=message):
        pc.train_search(space, 3, **CHEAP)
    assert not trainings and not [*registry.run_folder("mine").parent.glob("*")]


def test_the_command_prints_the_trials_and_resumes_by_name(run, trainings, monkeypatch, tmp_path):
    sweep = ["--sweep", "temperature=0.01..0.2", "--sweep", "learning-rate=1e-5..1e-3:log"]
    words = ["train", "simcse", "--name", "mine", *sweep, "--trials", 4]
    ran = run(*words, "--plot", tmp_path / "trials.png")
    assert ran.code == 0, ran.err
    head, *rows = ran.out.splitlines()
    assert head.split() == [
        *("trial", "temperature", "learning-rate", "demo:dev", "best", "steps", "state")
    ]
    assert len(rows) == 4 and sum("*" in row for row in rows) == 1
    assert "chosen: temperature" in ran.err and "saved as model 'mine'" in ran.err
    assert (tmp_path / "trials.png").exists()
    real = several_runs.carry_out
    stops = iter([False, False, True])

    def stopped(*given):
        if next(stops):
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(several_runs, "carry_out", stopped)
    assert run(*words, "--force").code == 130
    monkeypatch.setattr(several_runs, "carry_out", real)
    document = run("train", "--resume", "mine", "--json").json
    assert len(document["trials"]) == 4 and document["chosen"]


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--sweep", "temperature=0.01..0.2"], ["is a range; --trials N"]),
        (["--trials", 3], ["--trials needs settings to draw"]),
        (["--trials", 3, "--seeds", 2, "--sweep", "steps=1..3"], ["give one of them"]),
        (["--trials", 3, "--sweep", "seed=1..3"], ["--sweep does not take seed"]),
        (["--trials", 3, "--sweep", "steps=9..3"], ["ends are swapped; give 3..9"]),
    ],
)
def test_what_the_command_refuses(words, parts, run, trainings):
    refused(run("train", "simcse", "--name", "mine", *words), 2, *parts)


def test_a_real_search(tiny_folder, tmp_path, registry):
    text = [f"a dog runs {number}" for number in range(16)]
    given = {"method": "simcse", "data": text, "backbone": str(tiny_folder("bert"))}
    small = {"batch_size": 4, "steps": 2, "eval_steps": 1}
    space = {"learning_rate": "1e-4..1e-2:log"}
    found = pc.train_search(space, 2, name="mine", on="demo:dev", **given, **small)
    assert [trial.state for trial in found.trials] == ["finished", "finished"]
    assert pc.load("mine").encode(["a dog"]).shape[0] == 1
