"""``train`` from files into a model: every method, refusals, resuming, replacing and notes."""

import dataclasses
import os
from pathlib import Path

import pytest
import torch

import promptcli as pc
from promptcli.encoder.prompts import deep_prefix
from promptcli.errors import NotFoundError, UsageError
from promptcli.models.entries import Entry
from promptcli.recipe import RECIPES
from promptcli.training import run as running
from promptcli.training.methods import METHODS
from promptcli.training.step import TrainingStep
from tests.comparing import refusal
from tests.training_files import FILES
from tests.training_steps import family_for, stopped_at, with_scores

SMALL = {"batch_size": 4, "steps": 2, "eval_steps": 1, "on": "graded.tsv", "offline": True}


@pytest.fixture(autouse=True)
def files(here):
    """Every kind of data, in the current folder."""
    for name, lines in FILES.items():
        (here / name).write_text("\n".join(lines) + "\n")


@pytest.fixture
def small(bert_folder):
    return {"data": "text.txt", "backbone": str(bert_folder), **SMALL}


#: Method -> its options beside the data; and the pooling of those that have their own.
TOLD = {
    "dcpcse": {"prefix_length": 3},
    "rankcse": {"teacher": "mini"},
    "distill": {"teacher": "mini"},
    "denosent": {"decoder_layers": 1},
}
POOLING = {
    "cotbert": "last/mask:2",
    "consert": "last-two/avg",
    "isbert": "last/cnn:relu",
    "defsent": "last/avg",
}
DATA = {"sbert": "nli.tsv", "sbert-regression": "graded.tsv", "pcc-tuning": "graded.tsv"}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *((name, DATA.get(name, "text.txt")) for name in METHODS if name != "defsent"),
        ("defsent", "words.tsv"),
        ("consert", "nli.tsv"),
        *((name, "triplets.tsv") for name in ("promptbert", "dcpcse", "optiprompt", "denosent")),
    ],
)
def test_each_method_trains_from_a_file_into_a_model(name, data, tiny_folder, registry):
    backbone = str(tiny_folder(family_for(name)))
    options = {**SMALL, **TOLD.get(name, {})}
    trained = pc.train(name, data, backbone=backbone, name="mine", **options)
    assert (list(trained.scores), trained.facts["steps"]) == (["graded.tsv"], 2)
    again = pc.evaluate("mine", tasks=["graded.tsv"])[0].value
    assert again == pytest.approx(trained.development_score, abs=0.01)
    entry = registry.load("mine")
    assert entry.provenance["trained"]["method"] == name
    assert entry.recipe.pooling == POOLING.get(name, entry.recipe.pooling)
    convolutions = [tensor for tensor in entry.tensors if tensor.startswith("cnn.")]
    assert bool(convolutions) is (name == "isbert")
    if (name, data) == ("dcpcse", "text.txt"):
        assert set(entry.tensors) == {deep_prefix.TENSOR}
    if (name, data) == ("promptbert", "triplets.tsv"):
        assert entry.transfer == entry.recipe.replace(transforms=(), denoise="none")
    else:
        assert entry.transfer is None


def test_a_template_that_is_given_is_that_of_the_model(small, registry):
    pc.train("promptbert", template=("[X] is [MASK] .",), name="mine", **small)
    assert registry.load("mine").recipe.prompt == "[X] is [MASK] ."


def test_a_run_from_the_default_model_is_measured_against_it():
    trained = pc.train("simcse", start="mini", data="text.txt", name="mine", **SMALL)
    assert trained.references == {"mini": trained.untrained_scores} and trained.untrained_scores


def test_a_run_goes_on_from_a_model(small, registry):
    given = {**small, "data": "nli.tsv"}
    pc.train("sbert", name="sbert", **given)
    graded = {**SMALL, "data": "graded.tsv"}
    both = pc.train("sbert-regression", start="sbert", name="both", **graded)
    assert (both.facts["started_from"], len(both.facts["from"])) == ("sbert", 64)
    before = registry.load("sbert").scores[0]["value"]
    for start in (both.untrained_scores["graded.tsv"], both.curve[0].value):
        assert start == pytest.approx(before, abs=0.01)
    pc.train("dcpcse", name="prefix", **small)
    for method, options, said in (
        ("dcpcse", {"start": "sbert"}, "nothing for dcpcse to train"),
        ("simcse", {"start": "sbert", "backbone": "mini-bert"}, "leave out backbone"),
        ("simcse", {"start": "prefix"}, "nothing for simcse to train"),
    ):
        with refusal(said):
            pc.train(method, "text.txt", **SMALL, **options)
    with refusal("nobody", NotFoundError):
        pc.train("simcse", "text.txt", start="nobody", **SMALL)


@pytest.mark.parametrize(("method", "data"), [("simcse", "pairs.tsv"), ("defsent", "words.tsv")])
def test_a_run_from_mini_starts_as_mini_reads(method, data, registry):
    more = pc.train(method, data, start="mini", name="more", **SMALL)
    assert list(more.references) == ["mini"]
    mini = registry.load("mini").recipe
    shown = pc.training_settings(method, data, start="mini", batch_size=4)["recipe"]
    for recipe in (registry.load("more").recipe.to_dict(), shown):
        assert (recipe["prompt"], recipe["pooling"]) == (mini.prompt, mini.pooling)
    expected = pc.evaluate("mini", tasks=["graded.tsv"])[0].value
    for start in (more.untrained_scores["graded.tsv"], more.curve[0].value):
        assert start == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    ("method", "options", "parameter", "said"),
    [
        ("", {}, "method", "is missing; methods: promptbert"),
        ("dcpse", {}, "", "did you mean dcpcse?"),
        ("simcse", {"prefix_length": 3}, "prefix_length", "no such setting"),
        ("simcse", {"tempreature": 3}, "tempreature", "did you mean temperature?"),
        ("consert", {"augment_second": "adversarial"}, "", "augment-second"),
        ("sbert-regression", {"data": "graded.tsv", "loss": "cosin"}, "", "did you mean cosent"),
        ("dcpcse", {"prefix_length": 510}, "", "prefix length 510"),
        ("dcpcse", {"epochs": 0}, "", "epochs"),
        ("cotbert", {"template": 4 * ("[X] [MASK] [MASK]",)}, "template", "given 4 times"),
        ("cotbert", {"template": ("[X] [MASK]",)}, "", "reads the mask, but template"),
        ("dcpcse", {"supervised": True}, "supervised", "needs pairs or triplets"),
        ("scpcse", {"supervised": True}, "", "has no supervised form"),
        ("distill", {"paper": True}, "paper", "distill has no published settings"),
        ("dcpcse", {"name": "m", "resume": True, "method": ""}, "resume", "no unfinished run"),
        ("defsent", {"batch_size": 2, "data": "odd.tsv"}, "", "none of the 2 words, 'zxqv' first"),
        ("simcse", {"dims": "8,x"}, "dims", "'8,x' is not allowed"),
        ("cse-sfp", {}, "", "are for causal models"),
        ("simcse", {"data": "pairs.tsv", "batch_size": 128}, "", "4 examples are fewer than one"),
        ("simcse", {"data": "graded.tsv"}, "", "no column"),
        ("sbert", {"data": "graded.tsv"}, "", "no column"),
    ],
)
def test_a_training_that_cannot_begin_is_refused(method, options, parameter, said, small, registry):
    given = {"method": method, **small, "name": "mine", **options}
    with refusal(said) as error:
        pc.train(**given)
    assert parameter in ("", error.value.parameter)
    # the name is free for the next try
    assert not [*registry.run_folder("mine").parent.glob("*")]


def test_data_that_are_missing_are_not_found(small):
    for data in ("none.txt", "wiki1m_for_simcse"):
        with refusal(data, NotFoundError):
            pc.train("dcpcse", **{**small, "data": data})


def test_a_wrong_argument_is_said_before_a_name_that_is_taken(small, registry):
    registry.save(Entry("mine", RECIPES["cls"]))
    with refusal("no such setting"):
        pc.train("simcse", name="mine", prefix_length=3, **small)
    with refusal("none.txt", NotFoundError):
        pc.train("simcse", name="mine", **{**small, "data": "none.txt"})
    with refusal("'mine' exists"):
        pc.train("simcse", name="mine", **small)
    assert pc.train("simcse", name="mine", force=True, seed=3, **small).facts["seed"] == 3


def test_a_run_is_resumed_by_its_name_alone_from_any_folder(small, monkeypatch, tmp_path, registry):
    whole = pc.train("dcpcse", name="whole", **small)
    with stopped_at(monkeypatch, 1), pytest.raises(KeyboardInterrupt):
        pc.train("dcpcse", name="soft", **small)
    with refusal("unfinished run"):
        pc.train("dcpcse", name="soft", **small)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for changes, parameter in (({"temperature": 0.1}, "temperature"), ({"on": "x"}, "on")):
        with refusal("keeps its settings") as error:
            pc.train(name="soft", resume=True, **changes)
        assert error.value.parameter == parameter
    monkeypatch.chdir(tmp_path)
    for method, changes, said in (
        ("simcse", {}, "started with method 'dcpcse', not 'simcse'"),
        ("dcpcse", {"temperature": 0.1}, "started with temperature 0.05, not 0.1"),
    ):
        with refusal(said):
            pc.train(method, name="soft", resume=True, **small, **changes)
    monkeypatch.chdir("elsewhere")
    soft = pc.train(name="soft", resume=True)
    assert soft.entry.recipe == whole.entry.recipe
    assert [*soft.scores.values()] == [*whole.scores.values()]
    assert all(
        torch.equal(soft.entry.tensors[key], one) for key, one in whole.entry.tensors.items()
    )
    assert not registry.run_folder("soft").parent.exists()
    assert pc.train(name="soft", resume=True).scores == soft.scores  # done
    with refusal("keeps its settings"):
        pc.train(name="soft", resume=True, temperature=0.1)


def test_what_was_in_memory_is_given_again(small, monkeypatch):
    given = {**small, "data": FILES["text.txt"], "name": "mine"}
    with stopped_at(monkeypatch, 1), pytest.raises(KeyboardInterrupt):
        pc.train("simcse", **given)
    with refusal("in memory") as error:
        pc.train(name="mine", resume=True)
    assert error.value.parameter == "data"
    assert pc.train("simcse", resume=True, **given).facts["steps"] == 2


def test_a_finished_run_is_known_by_the_data_that_were_given(small, registry):
    """SNCSE makes triplets of sentences, which are no supervised data for that."""
    trained = pc.train("sncse", name="soft", **small)
    assert trained.facts["supervised"] is False
    assert pc.train("sncse", name="soft", resume=True, **small).scores == trained.scores


@pytest.mark.parametrize("damaged", ["state", "best"])
def test_a_damaged_file_of_a_run_is_told_before_the_next_step(
    damaged, small, monkeypatch, registry
):
    with stopped_at(monkeypatch, 1), pytest.raises(KeyboardInterrupt):
        pc.train("dcpcse", name="mine", **small)
    file = registry.run_folder("mine") / f"{damaged}.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    monkeypatch.setattr(TrainingStep, "gradients", None)  # no step is done
    with refusal(r"safetensors is damaged.*start again"):
        pc.train(name="mine", resume=True)
    assert "mine" not in registry.names()


@pytest.mark.parametrize("second", [{"force": True}, {"resume": True}, {}])
def test_a_run_keeps_others_from_its_name_while_it_lasts(second, small, monkeypatch, registry):
    """The other begins in the middle of a step of the first."""
    gradients, others = TrainingStep.gradients, []

    def in_the_meantime(trainer, number, *given):
        if number == 1 and not others:
            others.append(None)
            with pytest.raises(UsageError) as error:
                pc.train("simcse", name="t", **second, **small)
            others.append(str(error.value))
        return gradients(trainer, number, *given)

    monkeypatch.setattr(TrainingStep, "gradients", in_the_meantime)
    pc.train("simcse", name="t", **small)
    assert f"the training of 't' is running: process {os.getpid()} on " in others[1]
    assert "t" in registry.names() and not [*registry.run_folder("t").parent.glob("*")]


@pytest.mark.parametrize("force", [False, True])
def test_a_model_that_appears_while_one_is_trained_is_kept_or_replaced(
    force, small, monkeypatch, registry
):
    entry, gradients = registry.load("mini-static"), TrainingStep.gradients

    def in_the_meantime(trainer, number, *given):
        registry.save(dataclasses.replace(entry, name="t"), force=True)
        return gradients(trainer, number, *given)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "gradients", in_the_meantime)
        if force:
            pc.train("simcse", name="t", force=True, **small)
        else:
            with refusal("'t' was created"):
                pc.train("simcse", name="t", **small)
            assert registry.load("t").recipe == entry.recipe
    if not force:
        pc.train(name="t", resume=True)
    assert "trained" in registry.load_manifest("t").provenance


def stop(*_, **__):
    raise UsageError("stopped")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": "text.txt"}, "backbone mini-bert; checkpoints are chosen on the demo pairs"),
        ({"data": "text.txt", "on": "graded.tsv"}, "backbone mini-bert"),
        ({"data": "text.txt", "start": "mini"}, "checkpoints are chosen on the demo pairs"),
        ({"data": "text.txt", "on": "graded.tsv", "backbone": "mini-bert"}, None),
    ],
)
def test_a_training_begins_with_what_was_not_given(given, said, monkeypatch, notes):
    monkeypatch.setattr(running, "_note_examples", stop)
    with refusal("stopped"):
        pc.train("simcse", batch_size=4, **given)
    first, *others = notes
    assert first.startswith("settings of simcse: found on mini-bert; given: batch-size 4")
    assert others == [said] * (said is not None)


def test_what_the_data_are_like_is_said(small, notes):
    mixed = {**small, "data": [Path("triplets.tsv"), Path("pairs.tsv")]}
    trained = pc.train("simcse", data_temperature=2.0, **mixed)
    pc.train("sbert", **{**small, "data": "nli.tsv"})
    pc.train("defsent", **{**small, "data": "words.tsv"})
    expected = {"source": "triplets.tsv, pairs.tsv", "data_temperature": 2.0, "supervised": True}
    assert trained.facts.items() >= expected.items()
    said = "\n".join(notes)
    for part in (
        "4 pairs without a hard negative",
        "1 row without a label left out",
        "1 word left out, because a word must be a single token: guitars",
    ):
        assert part in said


@pytest.mark.parametrize(
    ("method", "given", "expected"),
    [
        ("promptbert", {"backbone": "roberta-base", "supervised": True}, {"head": "tanh, kept"}),
        ("dcpcse", {}, {"prefix_length": METHODS["dcpcse"][0].mini_bert_settings.prefix_length}),
        ("distill", {"teacher": "mini"}, {"teacher": "mini"}),
        ("simcse", {"data": "triplets.tsv", "batch_size": 4}, {"learning_rate": 6e-4}),
        ("simcse", {"data": "text.txt", "batch_size": 4}, {"learning_rate": 3e-4}),
        ("dcpcse", {"paper": True}, {"backbone": "bert-base-uncased", "batch_size": 256}),
    ],
)
def test_training_settings_are_those_in_force(method, given, expected):
    assert pc.training_settings(method, **given).items() >= expected.items()


def test_one_text_is_one_of_several(small):
    shown = pc.training_settings("promptbert", template="[X] [MASK]")
    assert shown["views"] == ["[X] [MASK]"] * 2
    with pytest.raises(pc.UsageError, match="unknown task 'other'"):
        pc.train("simcse", **small | {"tests": "other"})
    with pytest.raises(pc.UsageError, match="unknown tracker 'other'"):
        pc.train("simcse", **small, report_to="other")


def test_a_result_worse_than_what_was_not_trained_is_a_warning(small, notes):
    trained = pc.train("dcpcse", **small)
    for values, below, warning in (
        ({"untrained": 50, "begun": 40, "default": 60, "trained": 70}, [], ""),
        ({"untrained": 50, "begun": 40, "default": 91, "trained": 67}, ["mini"], ""),
        ({"untrained": 40, "begun": 50, "default": 30, "trained": 50}, [], "start has 50.00"),
        (
            {"untrained": 80, "begun": 60, "default": 75, "trained": 70},
            ["untrained", "mini"],
            "untrained has 80.00",
        ),
    ):
        notes.clear()
        changed = with_scores(trained, **values)
        assert list(changed.better_references) == changed.to_dict()["below"] == below
        running.warn_if_worse(changed)
        warnings = [line for line in notes if "is not better" in line]
        assert len(warnings) == bool(warning) and all(warning in line for line in warnings)
