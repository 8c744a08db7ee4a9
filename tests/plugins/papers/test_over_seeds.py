"""Trained models compared over seeds: groups of runs, their tests, and the table."""

import json
import statistics
from pathlib import Path

import pytest
from scipy import stats

import promptcli as pc
from promptcli.errors import NotFoundError, UsageError
from promptcli.plugins.papers.seeds import (
    PAIRED,
    WELCH,
    SeedGroup,
    SeedRun,
    compare_groups,
    read_groups,
)
from tests.comparing import refused
from tests.tiny import SENTENCES
from tests.training_files import write_graded_pairs

ONE = [70.1, 71.4, 70.9]
OTHER = [72.0, 72.8, 72.1]


def group(name, values, seeds=(0, 1, 2)):
    runs = [
        SeedRun(f"{name}-{seed}", seed, {"dev": value, "test": value + 1}, "dev")
        for seed, value in zip(seeds, values, strict=False)
    ]
    return SeedGroup(name, runs)


def test_runs_of_the_same_seeds_are_paired_and_others_are_not():
    (same, _) = compare_groups([group("a", ONE), group("b", OTHER)])
    assert same.difference == pytest.approx(statistics.fmean(ONE) - statistics.fmean(OTHER))
    assert (same.test, same.seeds) == (PAIRED, 3)
    assert same.p_value == pytest.approx(stats.ttest_rel(ONE, OTHER).pvalue)
    (others, _) = compare_groups([group("a", ONE), group("b", OTHER, (0, 1, 7))])
    assert (others.test, others.seeds) == (WELCH, 6)
    assert others.p_value == pytest.approx(stats.ttest_ind(ONE, OTHER, equal_var=False).pvalue)
    (fewer, _) = compare_groups([group("a", ONE), group("b", OTHER[:1])])
    assert (fewer.test, fewer.p_value, fewer.p_holm) == ("", None, None)
    assert not fewer.beyond_seeds


def test_p_values_are_corrected_for_their_number():
    found = compare_groups([group("a", ONE), group("b", OTHER), group("c", ONE[::-1])])
    smallest = min(row.p_value for row in found)
    assert min(row.p_holm for row in found) == pytest.approx(min(1, len(found) * smallest))


def test_equal_runs_have_no_p_value():
    (same, _) = compare_groups([group("a", ONE), group("b", ONE)])
    assert same.difference == 0
    assert same.p_value is None


@pytest.fixture
def trained(bert_folder, here):
    """Return a function that trains seeds of a method, and the options of all runs."""
    write_graded_pairs(here / "pairs.tsv")
    (here / "text.txt").write_text("\n".join(SENTENCES))
    options = {"backbone": str(bert_folder), "on": "pairs.tsv", "tests": ["pairs.tsv"]}
    options |= {"batch_size": 6, "steps": 2, "eval_steps": 1, "learning_rate": 0.01}

    def train(name, seeds, **changes):
        for seed in seeds:
            given = options | changes
            pc.train("simcse", "text.txt", name=f"{name}-{seed}", seed=seed, **given)

    train.options = options
    return train


def test_an_array_of_jobs_a_sweep_and_single_models_are_compared(trained, run, registry):
    trained("array", (0, 1))
    options = trained.options | {"learning_rate": 0.02}
    pc.tune("simcse", "text.txt", name="sweep", seeds=2, keep_runs=True, **options)
    array, sweep, named = read_groups(registry, ["array-*", "sweep", "array-1,array-0"])
    assert array.seeds == sweep.seeds == named.seeds == [0, 1]
    assert array.values("pairs.tsv") == named.values("pairs.tsv")
    # a run that its own model and the sweep's record both has counts once
    assert read_groups(registry, ["sweep*"])[0].seeds == [0, 1]
    ran = run("compare", "array-*", "sweep", "--json")
    assert ran.code == 0, ran.err
    (compared,) = ran.json["comparisons"]
    assert compared["test"] == PAIRED
    assert compared["over_pairs"]["p_value"] is not None
    one, other = ran.json["groups"]
    means = [statistics.fmean(each["tasks"][0]["scores"]) for each in (one, other)]
    assert compared["difference"] == pytest.approx(means[0] - means[1], abs=1e-3)
    assert "±" in run("compare", "array-*", "sweep").out


def test_what_is_no_group_of_seeds_is_refused(trained, run, registry):
    trained("one", (0,))
    trained("two", (1,), learning_rate=0.5)
    words = ("compare",)
    refused(run(*words, "one-0,two-1", "one-0"), 2, "differ in learning-rate: 0.01 and 0.5")
    trained("again", (0,), max_length=40)
    assert "p over seeds: none; p over pairs" in run(*words, "one-0", "again-0").out
    refused(run(*words, "one-0", "nobody"), 3, "no model 'nobody'")
    pc.load("last-avg", device="cpu").register("plain")
    refused(run(*words, "plain", "one-0"), 2, "'plain' has no runs")
    refused(run(*words, "mini", "one-0"), 2, "'mini' has no runs")
    refused(run(*words, "one-0"), 2, "name a second one")
    write_graded_pairs(Path("others.tsv"))
    trained("else", (0,), on="others.tsv", tests=["others.tsv"])
    refused(run(*words, "one-0", "else-0"), 2, "no common task (one-0: pairs.tsv; else-0: others")
    with pytest.raises(NotFoundError):
        read_groups(registry, ["x*"])
    with pytest.raises(UsageError):
        pc.compare_over_seeds(["one-0"])


def test_every_figure_can_be_traced_from_its_file(trained, run, registry):
    trained("one", (0, 1))
    trained("two", (0, 1), learning_rate=0.02)
    words = ("compare", "one-*", "two-*")
    card = registry.load_manifest("one-1").provenance
    facts = card["trained"]
    (group, _) = run(*words, "--json").json["groups"]
    ran = group["runs"][1]
    assert (ran["model"], ran["seed"], ran["method"]) == ("one-1", 1, "simcse")
    assert ran["scores"]["pairs.tsv"] == group["tasks"][0]["scores"][1]
    assert ran["settings"] == facts["settings"]
    assert ran["versions"] == facts["versions"]
    hashes = (card["weights_sha256"], facts["data"], facts["development"])
    names = ("backbone", "data", "development")
    assert tuple(ran[name] for name in names) == hashes
    (score,) = {score["data_sha256"] for score in registry.load_manifest("one-1").scores}
    assert group["tasks"][0]["data_sha256"] == score
    shown = run(*words).out
    for sha256 in (*hashes, score):
        assert sha256[:12] in shown
    for text in ("seeds 0 1", "learning-rate 0.02", f"torch {facts['versions']['torch']}"):
        assert text in shown


def test_tasks_of_an_own_metric_have_no_hash(trained, registry):
    trained("one", (0,))
    entry = registry.load("one-0")
    for score in entry.scores:
        score.pop("data_sha256", None)
    registry.save(entry, force=True)
    (group,) = read_groups(registry, ["one-0"])
    assert group.task_sha256("pairs.tsv") == ""


def test_tasks_of_one_name_with_other_data_are_not_compared(trained, run, tmp_path):
    trained("one", (0,))
    pairs = tmp_path / "pairs.tsv"
    lines = pairs.read_text().splitlines()
    pairs.write_text("\n".join(lines[:-1]))
    trained("two", (0, 1))
    refused(run("compare", "one-0", "two-*"), 2, "pairs.tsv", "different data")
    trained("other", (1,))
    ran = run("compare", "two-0", "other-1", "--json")
    assert ran.json["comparisons"][0]["over_pairs"] is not None
    pairs.write_text("\n".join(lines))
    ran = run("compare", "two-0", "other-1", "--json")
    assert ran.json["comparisons"][0]["over_pairs"] is None
    assert "not those of the runs" in ran.err


def test_every_run_is_kept_on_request_and_replaced_by_force(trained, run, registry):
    words = ["tune", "simcse", "--data", "text.txt", "--name", "mine", "--keep-runs"]
    for name, value in trained.options.items():
        if name in ("tests", "eval_steps"):
            continue
        words += [f"--{name.replace('_', '-')}", value]
    words += ["--test", "pairs.tsv", "--set", "eval-steps=1"]
    several = [*words, "--seeds", 2]
    first = run(*several, "--json")
    assert first.code == 0, first.err
    assert {"mine", "mine.run-1", "mine.run-2"} <= set(registry.names())
    facts = registry.load_manifest("mine.run-2").provenance["trained"]
    assert facts["settings"]["seed"] == 1
    again = run(*several, "--force", "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["summary"] == json.loads(first.out)["summary"]
    registry.remove("mine")
    assert "mine.run-1" in registry.names()
