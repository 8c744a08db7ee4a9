"""The notes of a run up to its first score, and the record of its model."""

import itertools

import pytest

import promptcli as pc
from tests.senteval import write_transfer
from tests.tiny import SENTENCES
from tests.training_files import write_graded_pairs

LONG = "the cat sat on the mat " * 12


@pytest.fixture
def given(bert_folder, tmp_path):
    pairs = str(write_graded_pairs(tmp_path / "pairs.tsv"))
    options = {"batch_size": 4, "steps": 1, "on": pairs, "tests": [pairs]}
    return {"backbone": str(bert_folder), **options, "offline": True}


@pytest.fixture
def said(notes):
    """Return a function that trains and returns the notes."""

    def train(*arguments, **options):
        notes.clear()
        pc.train(*arguments, **options)
        return [*notes]

    return train


@pytest.mark.parametrize(
    ("method", "data", "cut"),
    [
        ("simcse", [*SENTENCES, LONG, LONG], "2 of 14"),
        ("promptbert", [*SENTENCES, LONG], "1 of 13"),
        ("simcse", [(text, LONG, SENTENCES[0]) for text in SENTENCES[:6]], "6 of 18"),
        ("cotbert", [*SENTENCES, LONG], "1 of 13"),
    ],
)
def test_sentences_that_are_cut_are_counted_up_to_the_first_score(method, data, cut, given, said):
    given["batch_size"] = len(data)
    lines = said(method, data, max_length=60, **given)
    counted = [line for line in lines if "cut to 60 tokens" in line]
    assert len(counted) == 1
    assert "max-length" in counted[0]
    assert counted[0].endswith(cut)
    first_score = next(at for at, line in enumerate(lines) if line.startswith("step 1/"))
    assert lines.index(counted[0]) < first_score


def test_nothing_is_said_if_nothing_is_cut(given, said):
    lines = said("simcse", SENTENCES[:8], max_length=64, **given)
    assert not any("cut to" in line for line in lines)


def test_the_first_line_says_whose_settings_are_in_force(given, said):
    first, *_ = said("simcse", SENTENCES, **given)
    assert first.startswith("settings of simcse: published for bert-base-uncased")
    assert "given: batch-size 4, steps 1" in first


def test_the_record_of_a_model_traces_its_figures(given, registry):
    trained = pc.train("promptbert", SENTENCES, name="mine", seed=3, **given)
    facts = registry.load("mine").provenance["trained"]
    settings = facts["settings"]
    assert settings["seed"] == 3
    assert settings["steps"] == 1
    assert settings["temperature"] == 0.05
    differing = {
        row["setting"]: (row["value"], row["paper"]) for row in facts["differs_from_paper"]
    }
    assert differing == {"batch_size": (4, 256), "steps": (1, 0)}
    assert facts["versions"].keys() >= {"promptcli", "torch", "transformers", "python"}
    assert facts["command"] is None  # no command line
    assert facts["dtype"] == "auto"
    told = trained.to_dict()
    assert told["settings"] == {**settings, "template": ()}
    assert told["data"] == facts["data"]


def test_the_record_of_a_command_has_what_was_typed(run, given, tmp_path, registry):
    text = tmp_path / "a text.txt"
    text.write_text("\n".join(SENTENCES))
    words = [
        "--device",
        "cpu",
        "train",
        "simcse",
        "--data",
        text,
        "--on",
        given["on"],
        "--test",
        given["on"],
    ]
    words += ["--backbone", given["backbone"], "--batch-size", 4, "--steps", 1, "--name", "mine"]
    ran = run(*words, "--json")
    assert ran.code == 0, ran.err
    command = registry.load_manifest("mine").provenance["trained"]["command"]
    assert command.startswith("promptcli --device cpu train simcse --data '")
    assert ran.json["command"] == command
    assert ran.json["settings"]["batch_size"] == 4


def test_a_run_is_scored_on_a_transfer_task_as_the_method_reads_there(given, tmp_path, registry):
    write_transfer(tmp_path / "data")
    triplets = [(text, text, other) for text, other in itertools.pairwise(SENTENCES)]
    options = {**given, "tests": [given["on"], "SST-2"], "data_dir": tmp_path / "data"}
    trained = pc.train("promptbert", triplets, name="mine", **options)
    assert list(trained.scores)[1:] == ["SST-2"]
    assert trained.untrained_scores.keys() == trained.scores.keys()
    [again] = pc.evaluate("mine", tasks=["SST-2"], data_dir=tmp_path / "data")
    assert again.value == pytest.approx(trained.scores["SST-2"])
    assert registry.load("mine").transfer is not None
