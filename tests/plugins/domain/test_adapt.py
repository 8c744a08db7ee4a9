"""A model learns from texts without labels, and is saved if it is better for them alone."""

import csv
import dataclasses
import json
import os
import random
import shutil
import signal
from types import SimpleNamespace

import numpy as np
import pytest

import promptcli as pc
from promptcli.encoder.encoder import tuned_weights
from promptcli.models import loading
from promptcli.plugins.domain import adapt_runs, adapting
from promptcli.plugins.domain.adapt_collection import CollectionSplit, tasks_elsewhere
from promptcli.plugins.domain.adapt_runs import ATTEMPTS, plan_steps
from promptcli.plugins.domain.synthetic_queries import synthetic_queries
from promptcli.recipe import ModelChoice
from promptcli.training.step import TrainingStep
from tests.comparing import refusal
from tests.plugins.absent import delete_plugin
from tests.processes import Program
from tests.tiny import SENTENCES
from tests.training_steps import stopped_at

WORDS = sorted({word.lower() for line in SENTENCES for word in line.split() if word.isalpha()})
#: Topics, each with words of its titles and other words of its texts.
TOPICS = [(WORDS[place : place + 2], WORDS[place + 2 : place + 4]) for place in range(0, 32, 4)]


@pytest.fixture
def texts(tmp_path):
    """A table of titles and texts: which words of a text belong to those of a title is to be
    learned.
    """
    draw = random.Random(0)
    rows = {}
    while len(rows) < 160:
        of_title, of_text = draw.choice(TOPICS)
        title = " ".join(draw.sample([*of_title, *draw.sample(WORDS, 2)], 4))
        rows[title] = " ".join(draw.choices(of_text, k=6) + draw.sample(WORDS, 2))
    path = tmp_path / "texts.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("title", "text"), *rows.items()])
    return path


@pytest.fixture(scope="module")
def trained(bert_folder, tmp_path_factory):
    """A registry with a trained model."""
    folder = tmp_path_factory.mktemp("trained")
    options = {"backbone": str(bert_folder), "on": "demo:dev", "batch_size": 4, "steps": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROMPTCLI_HOME", str(folder))
        pc.train("distill", SENTENCES, teacher="mini-static", name="start", **options)
    return folder


@pytest.fixture
def start(trained, home):
    """The name of a trained model to start from."""
    shutil.copytree(trained, home)
    return "start"


def quick_trials(*names, epochs=1, **settings):
    """Return attempts with small batches and few steps, all or those of some names."""
    attempts = {}
    for name in names or ATTEMPTS:
        changed = {**ATTEMPTS[name].settings, "batch_size": 16, **settings}
        attempts[name] = dataclasses.replace(ATTEMPTS[name], settings=changed, epochs=epochs)
    return attempts


@pytest.fixture
def quick(monkeypatch):
    """Try few ways with other settings; return the function that sets them."""

    monkeypatch.setattr(adapt_runs, "BATCH_TOKENS", 128)
    monkeypatch.setattr(adapt_runs, "_MIN_PRETRAINING_TOKENS", 256)

    def change(*names, **settings):
        attempts = quick_trials(*names, **settings)
        for module in (adapt_runs, adapting):
            monkeypatch.setattr(module, "ATTEMPTS", attempts)

    return change


def own_models():
    return {entry.name for entry in pc.list_models() if not entry.name.startswith("mini")}


@pytest.fixture
def split(texts):
    return CollectionSplit.of(synthetic_queries([str(texts)]), seed=0)


@pytest.fixture
def found_more(monkeypatch):
    """Let the runs score as if they found every passage, and lose so many points elsewhere."""

    def change(lost=0.0):
        score = adapting.score_model

        def changed(encoder, name, tasks):
            own, pairs, guides = score(encoder, name, tasks)
            if name != "start":
                found = np.ones_like(own.by_example)
                own = dataclasses.replace(own, value=100.0, by_example=found)
                pairs = score(pc.load("start"), name, tasks)[1]
                pairs = dataclasses.replace(pairs, value=pairs.value - lost)
                guides = dataclasses.replace(guides, value=100.0)
            return [own, pairs, guides]

        monkeypatch.setattr(adapting, "score_model", changed)

    return change


def test_the_parts_share_no_document_and_no_answer(split):
    parts = [split.training, split.development, split.test]
    documents = [{query.document for query in part} for part in parts]
    assert not documents[0] & documents[1] and not documents[2] & (documents[0] | documents[1])
    assert [len(part) for part in parts] == [112, 16, 32]
    held_out = {row for part in parts[1:] for query in part for row in query.answers}
    texts = {split.collection.passages[row] for row in held_out}
    assert not texts & {passage for _, passage in split.pairs}
    assert not texts & set(split.sentences) and len(split.pairs) == 112
    task = split.test_task
    for query, grades in zip(task.queries, task.grades, strict=True):
        [asked] = [each for each in split.test if each.text == query]
        assert {task.documents[row] for row in grades} == {
            split.collection.passages[row] for row in asked.answers
        }


def test_another_seed_holds_out_other_documents(texts, split):
    other = CollectionSplit.of(split.collection, seed=1)
    assert {query.text for query in other.test} != {query.text for query in split.test}
    assert (
        CollectionSplit.of(split.collection, seed=0).test_task.sha256() == split.test_task.sha256()
    )


def test_texts_of_one_document_cannot_be_held_out(tmp_path):
    parts = [
        f"## The {word} and {other}\n\nA {other} needs some {word} here now.\n"
        for word in WORDS[:20]
        for other in WORDS[20:30]
    ]
    (tmp_path / "one.md").write_text("# All\n\n" + "\n".join(parts))
    collection = synthetic_queries([str(tmp_path / "one.md")])
    with refusal(r"1 document.*more files"):
        CollectionSplit.of(collection, seed=0)


def test_the_steps_fit_the_time(split, monkeypatch):
    ample = plan_steps(split, dict.fromkeys(ATTEMPTS, 1.0), 1e-3, 0.001, seconds=3600)
    assert ample.steps["pairs"] == 5 * 112 // 56 and ample.total < 3600
    longer = {
        name: dataclasses.replace(attempt, epochs=1e6 * attempt.epochs)
        for name, attempt in ATTEMPTS.items()
    }
    monkeypatch.setattr(adapt_runs, "ATTEMPTS", longer)
    scarce = plan_steps(split, dict.fromkeys(ATTEMPTS, 0.5), 1e-3, 0.01, seconds=600)
    assert 400 < scarce.total <= 600
    assert scarce.steps["pairs"] > 2 * scarce.steps["simcse"] > 16
    assert 0 < scarce.tokens * 1e-3 < 0.2 * 600
    none_left = plan_steps(split, dict.fromkeys(ATTEMPTS, 0.5), 1e-3, 0.01, seconds=1)
    assert set(none_left.steps.values()) == {8}


def test_what_is_shipped_of_other_texts_has_every_answer():
    pairs, guides = tasks_elsewhere()
    assert len(guides.queries) == 60 and all(len(grades) == 1 for grades in guides.grades)
    assert len(pairs.pairs()) > 20 and len(guides.documents) > 150


def test_a_model_that_is_not_better_is_not_saved(texts, start, quick, run, home):
    quick("pairs", "simcse", "dcpcse", "promptbert", learning_rate=0.0)
    ran = run("adapt", texts, "--name", "mine", "-m", "start")
    assert ran.code == 0
    assert "nothing learned" in ran.out and "not better" in ran.out
    assert ran.out.split()[0] == "row"
    assert "queries made from documents" in ran.err
    assert f'go on with start: promptcli search "your question" {texts} -m start' in ran.out
    assert own_models() == {"start"} and not [*(home / "runs").glob("*mine*")]
    assert {line.split()[0] for line in ran.out.splitlines()} >= {"pairs", "simcse", "dcpcse"}
    assert "promptbert was left out: it learns from sentences inside a prompt" in ran.err
    assert "promptbert" not in ran.out


def test_a_backbone_is_pretrained_and_its_change_is_added_to_the_start(
    start, home, tmp_path, monkeypatch
):
    entry = loading.resolve_entry(start)
    texts = [" ".join(WORDS)] * 20
    backbone = entry.recipe.backbone
    split = SimpleNamespace(training_passages=texts)
    trainings = adapt_runs.Trainings("mine", entry, ModelChoice(device="cpu"), split, 0, ATTEMPTS)
    pretrain = trainings.pretrain_backbone
    (tmp_path / "run" / "backbone" / "work").mkdir(parents=True)  # as if killed as it began
    tokens = 2 * adapt_runs.BATCH_TOKENS
    assert pretrain(tmp_path / "run", tokens=tokens) > 0
    assert pretrain(tmp_path / "run", tokens=tokens) > 0  # as if killed at its end
    moved = adapt_runs.add_change(entry, tmp_path / "run", "moved")
    before, after = (
        pc.load(pc.Recipe(backbone=each), dtype="float32").backbone.model.state_dict()
        for each in (backbone, str(tmp_path / "run" / "backbone"))
    )
    tuned, now = (tuned_weights(each.tensors) for each in (entry, moved))
    assert tuned.keys() == now.keys()
    changes = {name: (now[name] - tuned[name].float()).numpy() for name in tuned}
    for name, change in changes.items():
        assert np.allclose(change, (after[name] - before[name]).numpy(), atol=1e-6)
    assert any(np.abs(change).max() > 1e-6 for change in changes.values())
    finished = SimpleNamespace(figures={"tokens_per_second": None})  # in no measurable time
    monkeypatch.setattr(pc, "pretrain", lambda *_, **__: finished)
    assert pretrain(tmp_path / "run", tokens=tokens) == 1


def test_pretraining_is_a_row_that_leaves_no_model(texts, start, quick, run, home):
    quick("pretrain")
    ran = run("adapt", texts, "--name", "mine", "-m", "start", "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert [row["row"] for row in document["rows"]] == ["as it is", "pretrain"]
    assert document["left_out"] == {}
    assert own_models() - {"mine"} == {"start"} and not [*(home / "runs").glob("*")]


def test_a_row_whose_plugin_is_missing_is_left_out(texts, start, quick, run, home, monkeypatch):
    quick("pairs", "pretrain")
    delete_plugin("pretrain", monkeypatch)
    monkeypatch.delitem(vars(pc), "pretrain", raising=False)
    ran = run("adapt", texts, "--name", "mine", "-m", "start", "--dry-run", "--json")
    document = json.loads(ran.out)
    assert [row["row"] for row in document["rows"]] == ["pairs"]
    assert "pretrain" in document["left_out"]["pretrain"]


def test_a_better_model_is_saved_with_its_table(texts, start, quick, found_more, run, home):
    quick("pairs", epochs=5)
    found_more()
    ran = run("adapt", texts, "--name", "mine", "-m", "start", "--json")
    document = json.loads(ran.out)
    assert (document["saved"], document["chosen"]) == ("mine", "pairs")
    assert own_models() == {"start", "mine"} and not [*(home / "runs").glob("*")]
    assert pc.load("mine").encode(["A cat."]).shape == (1, 16)
    again = run("adapt", texts, "--name", "mine", "-m", "start", "--resume")
    assert again.code == 0 and "done" in again.err
    assert f'promptcli search "your question" {texts} -m mine' in again.out
    forced = run(*"adapt --name mine -m start --resume --force --dry-run --json".split(), texts)
    assert json.loads(forced.out)["reason"] == "a dry run"
    assert run("adapt", texts, "--name", "mine", "-m", "start").code == 2


def test_a_model_that_forgets_other_texts_is_not_saved(texts, start, quick, found_more, run):
    quick("pairs", epochs=5)
    found_more(lost=2.5)
    ran = run("adapt", texts, "--name", "mine", "-m", "start")
    assert "worse elsewhere" in ran.out and "margin" in ran.out and "nothing saved" in ran.out


@pytest.mark.parametrize(
    ("own", "p_value", "lost", "best_step", "verdict"),
    [
        (5.0, 0.01, 0.0, 4, adapting.BETTER),
        (5.0, 0.01, 2.0, 4, adapting.BETTER),
        (5.0, 0.01, 2.1, 4, adapting.BETTER_HERE),
        (5.0, 0.05, 0.0, 4, adapting.UNCHANGED),
        (-5.0, 0.01, 0.0, 4, adapting.WORSE),
        (0.0, 1.0, 0.0, 0, adapting.NOTHING_LEARNED),
    ],
)
def test_a_verdict_follows_from_chance_and_from_what_is_lost(
    own, p_value, lost, best_step, verdict
):
    changes = [
        SimpleNamespace(difference=change, beyond_chance=p_value < 0.05)
        for change in (own, -lost, 3.0)
    ]
    trained = SimpleNamespace(facts={"best_step": best_step})
    assert adapting.ComparedAttempt("pairs", trained, [], changes).verdict(2.0) == verdict


def dies_in_the_second_run():
    adapt_runs.ATTEMPTS = adapting.ATTEMPTS = quick_trials("pairs", "simcse")
    plain = TrainingStep.gradients

    def dying(steps, step, *given):
        if steps.encoder.method.name == "simcse" and step == 2:  # timing takes two
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(steps, step, *given)

    TrainingStep.gradients = dying


def test_an_adaptation_that_was_killed_goes_on(texts, start, quick, run, home, monkeypatch):
    quick("pairs", "simcse")
    arguments = ["adapt", texts, "--name", "mine", "-m", "start", "--json"]

    program = Program(*arguments, before=dies_in_the_second_run)
    program.communicate()
    assert program.returncode == -signal.SIGKILL
    assert "mine.pairs" in own_models() and (home / "runs" / "mine.simcse").is_dir()
    refused = run(*arguments)
    assert refused.code == 2 and "resume" in refused.err
    with stopped_at(monkeypatch, 2):
        interrupted = run(*arguments, "--resume")
    assert interrupted.code == 130 and "the same command with --resume" in interrupted.err
    resumed = run(*arguments, "--resume")
    assert resumed.code == 0
    assert "resumed after step" in resumed.err
    assert "pairs was done before" in resumed.err and "--force" not in resumed.err
    whole = run(*arguments[:2], "--name", "whole", *arguments[4:])
    figures = []
    for ran in (resumed, whole):
        document = json.loads(ran.out)
        for row in document["rows"]:
            row.pop("seconds", None)
        figures.append(document["rows"])
    assert figures[0] == figures[1]
    assert own_models() == {"start"} and not [*(home / "runs").glob("*")]


def test_a_dry_run_tells_the_time_and_leaves_nothing(texts, start, quick, run, home):
    quick()
    ran = run("adapt", texts, "--name", "mine", "-m", "start", "--dry-run")
    assert ran.code == 0 and "hours" in ran.out and "dcpcse" in ran.out
    assert "exceeded" not in ran.err
    quick("pairs")
    hasty = run("adapt", texts, "--name", "m", "-m", "start", "--dry-run", "--hours", "1e-5")
    assert "1e-05 hours are exceeded by" in hasty.err
    one = run("adapt", texts, "--name", "m", "-m", "start", "--dry-run", "--row", "pairs", "--json")
    assert [row["row"] for row in one.json["rows"]] == ["pairs"]
    assert own_models() == {"start"} and not [*(home / "runs").glob("*")]


def test_what_cannot_begin_is_refused_with_what_to_do(texts, start, run, quick, tmp_path):
    quick("pairs")
    refused = run("adapt", texts, "--name", "mine", "-m", "last-avg")
    assert refused.code == 2 and "--model: " in refused.err and "give mini" in refused.err
    at_once = run("adapt", tmp_path / "no-such-file", "--name", "mine", "-m", "mini-static")
    assert at_once.code == 2 and "static" in at_once.err
    assert run("adapt", texts, "--name", "mine", "--row", "pears").code == 2
    pc.register(pc.load("start"), "mine.pairs")
    taken = run("adapt", texts, "--name", "mine", "-m", "start")
    assert taken.code == 2 and "mine.pairs" in taken.err
    for name in ("mini", "a/b"):  # before a dry run, too
        named = run("adapt", texts, "--name", name, "-m", "start", "--dry-run")
        assert named.code == 2 and name in named.err
    few = tmp_path / "few.txt"
    few.write_text("Too little.\n")
    assert "150" in run("adapt", few, "--name", "other").err


def test_texts_in_a_language_that_the_shipped_model_has_not_learned_are_refused(tmp_path):
    sentences = ["Der Drucker im zweiten Stock druckt nur leere Seiten.", "Das Paket kam nicht an."]
    rows = [(f"Drucker {number}", f"{sentences[number % 2]} ({number})") for number in range(200)]
    with (tmp_path / "de.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("title", "text"), *rows])
    with refusal("has not learned German") as refused:
        pc.adapt([tmp_path / "de.csv"], name="mine")
    assert refused.value.parameter == "start"
