"""`promptcli train`: every method from a file into a model, sweeps and seeds, what it says, draws
and refuses.
"""

import dataclasses
import itertools
import json
import os
import statistics
from pathlib import Path

import pytest
import torch

import promptcli as pc
from promptcli.cli.commands import train as command
from promptcli.encoder.prompts import deep_prefix
from promptcli.errors import UsageError
from promptcli.models.entries import Entry
from promptcli.models.registry import Registry
from promptcli.recipe import RECIPES
from promptcli.training.carry_out import warn_if_worse
from promptcli.training.methods import METHODS
from promptcli.training.trained import Trained
from promptcli.training.trainer import Trainer
from tests.embed_running import refused
from tests.learning import family_for, stopped_at
from tests.processes import Program, ranks_of_two
from tests.tiny import SENTENCES

LABELS = ["entailment", "contradiction", "neutral", "neutral"]
SMALL = ["--batch-size", 4, "--set", "eval-steps=2", "--learning-rate", 0.01, "--offline"]
FILES = {
    "text.txt": [f"{one} {other}" for one in SENTENCES for other in SENTENCES[:4]],
    "triplets.tsv": [
        "sent0\tsent1\thard_neg",
        *(f"{one}\t{other}\t{one}" for one, other in itertools.pairwise(SENTENCES)),
    ],
    "pairs.tsv": ["sent0\tsent1", *(f"{one}\t{one}" for one in SENTENCES[:4])],
    "nli.tsv": [
        "label\tpremise\thypothesis",
        *(f"{LABELS[at % 4]}\t{SENTENCES[at]}\t{SENTENCES[-at]}" for at in range(8)),
        "-\tNobody\tagreed",
    ],
    "graded.tsv": [
        "sentence1\tsentence2\tscore",
        *(
            f"{one}\t{other}\t{at % 6}"
            for at, (one, other) in enumerate(itertools.product(SENTENCES, repeat=2))
        ),
    ],
    "odd.tsv": ["zxqv\tThey are plucked.", "vqxz\tThey too."],
    "words.tsv": [
        "woman\tAn adult.",
        "dog\tIt barks.",
        "door\tIt opens.",
        "dog\tA pet.",
        "guitars\tThey are plucked.",
    ],
}


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Every kind of data, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name, lines in FILES.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")


@pytest.fixture
def options(tiny_folder):
    few = [
        "--data",
        "text.txt",
        "--batch-size",
        8,
        "--set",
        "eval-steps=3",
        "--epochs",
        0.5,
        "--learning-rate",
        0.01,
    ]
    return ["--backbone", tiny_folder("bert"), *few, "--offline"]


#: What a method notes of its data, and how its vectors are pooled if not as usual.
NOTED = {
    "sbert": "1 row without a label",
    "defsent": "1 words that are not a single token left out: guitars",
}
POOLING = {
    "cotbert": "last/mask:2",
    "consert": "last-two/avg",
    "isbert": "last/cnn:relu",
    "defsent": "last/avg",
}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *(
            (name, data)
            for name, pair in METHODS.items()
            for form, data in zip(pair, ("text.txt", "triplets.tsv"), strict=True)
            if form and form.objective == "contrastive"
        ),
        ("cotbert", "text.txt"),
        ("consert", "text.txt"),
        ("consert", "nli.tsv"),
        ("isbert", "text.txt"),
        ("defsent", "words.tsv"),
        ("sbert", "nli.tsv"),
        ("sbert-regression", "graded.tsv"),
        ("rankcse", "text.txt"),
        ("denosent", "triplets.tsv"),
        ("cse-sfp", "text.txt"),
        ("pcc-tuning", "graded.tsv"),
    ],
)
def test_each_method_trains_from_a_file_into_a_model(name, data, run, tiny_folder, registry):
    options = [
        "--backbone",
        tiny_folder(family_for(name)),
        "--data",
        data,
        "--name",
        "mine",
        *SMALL,
        "--steps",
        2,
    ]
    options += ["--set", "prefix-length=3"] if name == "dcpcse" else []
    options += ["--set", "teacher=mini"] if name == "rankcse" else []
    options += ["--prompt", "[X] is [MASK] ."] if (name, data) == ("promptbert", "text.txt") else []
    ran = run("train", "--method", name, *options, "--json")
    assert ran.code == 0, ran.err
    assert NOTED.get(name, "") in ran.err
    told = ran.json
    assert ([row["task"] for row in told["scores"]], told["steps"]) == (["demo:dev", "demo"], 2)
    again = run("eval", "-m", "mine", "--task", "demo", "--json", "--offline").json["results"][0]
    assert again["value"] == pytest.approx(told["scores"][1]["trained"], abs=0.01)
    entry = registry.load("mine")
    assert entry.provenance["trained"]["method"] == name
    assert entry.recipe.pooling == POOLING.get(name, entry.recipe.pooling)
    assert bool([tensor for tensor in entry.tensors if tensor.startswith("cnn.")]) is (
        name == "isbert"
    )
    if (name, data) == ("promptbert", "text.txt"):
        assert (
            [entry.recipe.prompt] == entry.provenance["trained"]["template"] == ["[X] is [MASK] ."]
        )
    if (name, data) == ("dcpcse", "text.txt"):
        assert set(entry.tensors) == {deep_prefix.TENSOR}
    plain = (
        {"transforms": (), "denoise": "none"}
        if (name, data) == ("promptbert", "triplets.tsv")
        else None
    )
    assert entry.transfer == (plain and entry.recipe.replace(**plain))


def test_a_killed_run_ends_at_the_same_numbers(tiny_folder, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    data = ["--on", "graded.tsv", "--test", "graded.tsv", "--data", "text.txt"]
    data += ["--backbone", tiny_folder("bert")]
    arguments = ["--threads", "1", "train", "dcpcse", *data, *SMALL, "--epochs", 3, "--json"]

    def launch(name, *options):
        return Program(*arguments, *options, environment={"PROMPTCLI_HOME": str(tmp_path / name)})

    whole, killed = launch("whole"), launch("killed")
    killed.kill_once_there(tmp_path / "killed" / "runs" / "dcpcse" / "state.safetensors")
    assert not (tmp_path / "killed" / "models" / "dcpcse").exists() and not list(scratch.iterdir())
    other = launch("killed", "--resume", "--temperature", "0.1")
    assert other.wait() == 2
    assert "was started with temperature 0.05, not 0.1" in other.stderr.read().decode()
    resumed = launch("killed", "--resume")
    assert resumed.wait() == 0, resumed.stderr.read()
    assert whole.wait() == 0, whole.stderr.read()
    one, two = json.loads(whole.stdout.read()), json.loads(resumed.stdout.read())
    assert {**one, "seconds": 0} == {**two, "seconds": 0}
    first, second = (
        Registry(tmp_path / name).load("dcpcse").tensors for name in ("whole", "killed")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_two_processes_make_one_entry(options, tmp_path):
    arguments = [
        "train",
        "dcpcse",
        *options,
        "--on",
        "graded.tsv",
        "--test",
        "graded.tsv",
        "--set",
        "dropout=0",
        "--set",
        "prefix-length=2",
    ]
    # one run after the other in the same processes
    arguments += ["--seeds", "2", "--json", "--dtype", "float32"]
    entries = {}
    for name, ranks in (("two", ranks_of_two()), ("one", [{}])):
        place = {"PROMPTCLI_HOME": str(tmp_path / name)}
        running = [Program(*arguments, environment={**place, **rank}) for rank in ranks]
        ended = [process.communicate() for process in running]
        assert [process.returncode for process in running] == [0] * len(ranks), ended
        # one process speaks
        assert [bool(out.strip()) for out, _ in ended] == [True, False][: len(ranks)]
        entries[name] = Registry(tmp_path / name).load("dcpcse")
    assert entries["two"].provenance["trained"]["processes"] == 2
    for name, tensor in entries["one"].tensors.items():
        assert torch.allclose(entries["two"].tensors[name], tensor, atol=1e-4)


def test_a_run_goes_on_from_a_model(run, tiny_folder, registry):
    small = [*SMALL, "--epochs", 1, "--on", "graded.tsv"]
    first = ["--backbone", tiny_folder("bert")]
    assert run("train", "sbert", *first, "--data", "nli.tsv", *small).code == 0
    ran = run(
        "train",
        "sbert-regression",
        "--from",
        "sbert",
        "--data",
        "graded.tsv",
        "--name",
        "both",
        *small,
    )
    assert ran.code == 0, ran.err
    sbert, both = registry.load("sbert"), registry.load("both")
    trained = both.provenance["trained"]
    assert (trained["started_from"], len(trained["from"])) == ("sbert", 64)
    for start in (trained["untrained"][0]["value"], trained["curve"][0]["value"]):
        assert start == pytest.approx(sbert.scores[0]["value"], abs=0.01)
    assert (
        run("train", "dcpcse", "--data", "text.txt", "--name", "prefix", *small, *first).code == 0
    )
    for words, code, message in (
        (["dcpcse", "--from", "sbert"], 2, "dcpcse does not train it"),
        (["simcse", "--from", "sbert", "--backbone", "mini-bert"], 2, "leave out --backbone"),
        (["simcse", "--from", "prefix"], 2, "model 'prefix' has no trained backbone"),
        (["simcse", "--from", "nobody"], 3, "nobody"),
    ):
        refused(run("train", *words, "--offline", "-q"), code, message)


def test_too_few_examples_are_refused_before_the_backbone_is_opened(run, monkeypatch):
    monkeypatch.delattr("promptcli.training.carry_out.load_backbone")
    words = ("train", "simcse", "--data", "pairs.tsv", "--offline", "-q")
    refused(run(*words), 2, "4 examples are less than one batch", "; add --batch-size 4")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["--data", "text.txt"],
            "backbone mini-bert (--backbone); checkpoints are chosen on the demo pairs (--on)",
        ),
        (["--data", "text.txt", "--on", "graded.tsv"], "backbone mini-bert (--backbone)"),
        (
            ["--data", "text.txt", "--from", "mini"],
            "checkpoints are chosen on the demo pairs (--on)",
        ),
        (
            ["--backbone", "mini-bert"],
            "the demo sentences are the data (--data); checkpoints are chosen on the demo pairs"
            " (--on); --paper takes the papers' backbone and data",
        ),
        (["--data", "text.txt", "--on", "graded.tsv", "--backbone", "mini-bert"], None),
    ],
)
def test_a_training_begins_with_what_was_not_given(given, said, run, monkeypatch):
    def stop(*_, **__):
        raise UsageError("stopped")

    monkeypatch.setattr("promptcli.training.carry_out.load_backbone", stop)
    first, *notes, error = run("train", "simcse", *given, *SMALL).err.splitlines()
    assert error == "promptcli: stopped"
    assert first.startswith("settings of simcse: found on mini-bert (")
    assert notes == [said] * (said is not None)


def test_scores_on_pairs_that_were_learned_are_said(run, monkeypatch):
    def stop(*_, **__):
        raise UsageError("stopped")

    monkeypatch.setattr("promptcli.training.carry_out.load_backbone", stop)
    rows = FILES["graded.tsv"]
    Path("copy.tsv").write_text("\n".join(rows) + "\n")
    Path("others.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\nc\td\t2\ne\tf\t3\n")
    words = ("train", "sbert-regression", "--data", "graded.tsv", *SMALL, "--on")
    count = len(rows) - 1
    said = f"copy.tsv: {count} of {count} pairs are in the data, so its score is on pairs that were"
    assert said in run(*words, "copy.tsv").err
    assert "are in the data" not in run(*words, "others.tsv").err


def test_a_taken_name_is_refused_unless_it_is_replaced(run, options, registry):
    words = ["train", "simcse", *options, "--json"]
    assert run(*words).code == 0
    refused(run(*words), 2, "'simcse'", "--force")
    assert run(*words, "--force", "--seed", 3).code == 0
    assert registry.load("simcse").provenance["trained"]["seed"] == 3


def test_a_wrong_setting_is_said_before_a_name_that_is_taken(run, registry):
    registry.save(Entry("mine", RECIPES["cls"]))
    refused(run("train", "simcse", "--name", "mine", "--set", "prefix-length=3"), 2, "no setting")
    refused(run("train", "simcse", "--name", "mine"), 2, "'mine'", "--force")


def test_a_setting_that_is_typed_as_an_option_is_told_how(run):
    refused(run("train", "dcpcse", "--prefix-length", 3), 2, "--set prefix-length=VALUE")


def test_a_sweep_over_seeds_is_one_table_and_its_best_is_kept(run, options, tmp_path, registry):
    words = ["train", "--method", "dcpcse", *options, "--seeds", 2]
    sweep = ["--sweep", "prefix-length=2,3", "--sweep", "temperature=0.05"]
    told = run(*words, *sweep, "--json").json
    assert [(row["changes"]["prefix_length"], row["seed"]) for row in told["runs"]] == [
        (2, 0),
        (2, 1),
        (3, 0),
        (3, 1),
    ]
    figures = [[row["trained"] for row in one["scores"]] for one in told["runs"]]
    values = [test for _, test in figures[2:]]
    (found,) = [
        one
        for one in told["summary"]
        if one["task"] == "demo" and one["changes"]["prefix_length"] == 3
    ]
    expected = [statistics.fmean(values), statistics.stdev(values), min(values), max(values)]
    assert [found[name] for name in ("mean", "std", "min", "max")] == pytest.approx(
        expected, abs=0.01
    )
    assert values[0] != values[1]
    best = told["runs"][max(range(4), key=lambda at: figures[at][0])]
    entry = registry.load("dcpcse")
    assert entry.recipe.prompt == f"deep-prefix:{best['changes']['prefix_length']}"
    assert entry.provenance["trained"]["seed"] == best["seed"]
    assert not [name for name in registry.names() if ".run-" in name]
    shown = run(*words, "--name", "other")
    assert [line.split()[0] for line in shown.out.splitlines()] == ["task", "demo:dev", "demo"]


def test_a_damaged_best_checkpoint_is_told_before_the_next_step(
    run, options, monkeypatch, registry
):
    words = ["train", "dcpcse", *options, "--set", "eval-steps=1"]
    with stopped_at(monkeypatch, 2):
        run(*words)
    best = registry.run_folder("dcpcse") / "best.safetensors"
    content = bytearray(best.read_bytes())
    content[-1] ^= 1
    best.write_bytes(content)
    monkeypatch.setattr(Trainer, "gradients", None)  # no step is done
    said = run("train", "--resume", "dcpcse").err
    assert "best.safetensors is damaged" in said and "start again" in said
    assert "dcpcse" not in registry.names()


def test_a_setting_that_is_swept_twice_has_the_values_of_both():
    sweep = ["warmup=0.1,0.2", "batch-size=8", "warmup=0.2,0.3,0.3"]
    trials = command._trials(sweep, None)
    assert [trial["warmup"] for trial in trials] == [0.1, 0.2, 0.3]
    assert len(command._trials(["warmup=0.1,0.10"], 2)) == 2  # the seeds
    for twice in (["warmup=0.1..0.2", "warmup=0.3"], ["warmup=0.1..0.2", "warmup=0.3..0.4"]):
        with pytest.raises(UsageError, match="--sweep warmup is given twice"):
            command._space(twice, None)


def test_trials_of_the_same_settings_are_refused(registry):
    trials = [{"seed": 1}, {"seed": 2}, {"seed": 1}]
    with pytest.raises(UsageError, match="trials 1 and 3 have the same settings"):
        pc.train_sweep(trials, method="simcse", name="mine")
    assert not [*registry.run_folder("mine").parent.glob("*")]


def test_a_sweep_that_was_stopped_goes_on(run, options, monkeypatch):
    arguments = ["train", "--method", "dcpcse", *options, "--seeds", 3, "--set", "prefix-length=2"]
    arguments += ["--set", "eval-steps=1", "--json"]
    expected = run(*arguments, "--name", "whole").json["summary"]
    with stopped_at(monkeypatch, 2, seed=1):  # the score of step 2 is kept already
        stopped = run(*arguments)
    assert "interrupted; `promptcli train --resume dcpcse` continues" in stopped.err
    assert "--force" in stopped.err
    assert run("models", "show", "dcpcse.run-1").code == 0  # a finished one
    refused(run(*arguments), 2, "--resume it, --force starts it again")
    assert (
        "was started with weight-decay 0.0, not 0.1"
        in run(*arguments, "--set", "weight-decay=0.1", "--resume").err
    )
    resumed = run(*arguments, "--resume")
    assert resumed.code == 0, resumed.err
    assert resumed.json["summary"] == expected
    again = run(*arguments, "--resume")
    assert again.code == 0
    assert "done: model 'dcpcse'" in again.err


def test_a_run_whose_state_is_damaged_says_what_can_be_typed(run, options, monkeypatch, home):
    arguments = ["train", "optiprompt", *options, "--name", "soft", "--set", "eval-steps=1"]
    with stopped_at(monkeypatch, 1):
        stopped = run(*arguments)
    assert (
        stopped.code == 130
        and "`promptcli train --resume soft` continues the run, --force starts it" in stopped.err
    )
    state = home / "runs/soft/state.safetensors"
    state.write_bytes(b"")
    refused(run(*arguments, "--resume", "-q"), 2, f"delete {state.parent} and start again")
    assert run(*arguments, "--force").code == 0


def test_data_of_several_files_are_mixed(run, tiny_folder, registry):
    data = [
        "--data",
        "triplets.tsv",
        "--data",
        "pairs.tsv",
        "--batch-size",
        4,
        "--set",
        "batches=one-source",
    ]
    ran = run("train", "simcse", "--backbone", tiny_folder("bert"), *data, "--offline")
    assert ran.code == 0, ran.err
    assert "4 pairs without a hard negative" in ran.err and "rows an epoch" in ran.err
    trained = registry.card("simcse").provenance["trained"]
    expected = {"source": "triplets.tsv, pairs.tsv", "batches": "one-source", "supervised": True}
    assert trained.items() >= expected.items()


def test_one_run_says_and_keeps(run, options):
    ran = run("train", "optiprompt", *options, "--name", "soft")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    # the shipped model stands beside its own backbone only
    assert lines[0].split() == ["task", "plain", "encoder", "untrained", "start", "trained"]
    assert len(lines[lines.index("") + 2 :]) >= 5  # words and the nearest to them
    assert "step 0/" in ran.err and "examples/s" in ran.err
    card = run("models", "show", "soft", "--json").json["provenance"]["trained"]
    assert {
        "curve",
        "data",
        "seed",
        "versions",
        "untrained",
        "nearest_words",
        "mask_duplicates",
    } <= card.keys()


def test_a_worse_model_is_reported(run, options):
    ran = run("train", "--method", "simcse", *options, "--learning-rate", 1000)
    assert ran.code == 0 and "did not improve on the untrained encoder" in ran.err


def figures_of(registry, name, **values):
    """Change what the record of a model says: the development scores of the model and of its
    references.
    """
    entry = registry.load(name)
    trained = dict(entry.provenance["trained"])
    for key, value in values.items():
        score = {**entry.scores[0], "value": value}
        if key == "trained":
            entry = dataclasses.replace(entry, scores=[score])
        else:
            trained[key] = [score]
    return Trained(dataclasses.replace(entry, provenance={**entry.provenance, "trained": trained}))


def test_the_last_line_says_what_is_better_and_what_to_type(run, options, registry, capsys):
    words = [*options, "--on", "graded.tsv", "--steps", 1]
    assert run("train", "dcpcse", *words, "--name", "mine").code == 0
    good, below_mini, below_plain = (
        figures_of(registry, "mine", untrained=50, begun=40, default=60, trained=70),
        figures_of(registry, "mine", untrained=50, begun=40, default=91.41, trained=67.09),
        figures_of(registry, "mine", untrained=80, begun=60, default=75, trained=70),
    )
    for trained, below, told in (
        (good, [], "saved as model 'mine'; use it: promptcli embed FILE -m mine"),
        (
            below_mini,
            ["mini"],
            "mini is better on graded.tsv, 91.41 to 67.09: promptcli embed FILE -m mini",
        ),
        (
            below_plain,
            ["plain encoder", "mini"],
            "80.00 to 70.00: promptcli embed FILE --backbone ",
        ),
    ):
        assert list(trained.below) == trained.to_dict()["below"] == below
        assert told in command._last_line(trained, "mine")
        # dcpcse does not tune the backbone
        assert "train from it" not in command._last_line(trained, "mine")
        warn_if_worse(trained)
        warned = "mine is worse than without training" in capsys.readouterr().err
        assert warned is ("plain encoder" in below)


def test_a_run_that_tunes_mini_bert_is_told_to_start_from_mini(run, registry):
    assert (
        run(
            "train",
            "simcse",
            "--data",
            "text.txt",
            "--on",
            "graded.tsv",
            "--steps",
            1,
            "--batch-size",
            4,
        ).code
        == 0
    )
    trained = figures_of(registry, "simcse", default=90, trained=10, untrained=5)
    assert command._last_line(trained, "simcse").endswith(
        "promptcli embed FILE -m mini; or train from it: --from mini"
    )


@pytest.mark.parametrize(("method", "data"), [("simcse", "pairs.tsv"), ("defsent", "words.tsv")])
def test_a_run_from_mini_starts_as_mini_reads(method, data, run, registry):
    words = [
        "--from",
        "mini",
        "--data",
        data,
        "--on",
        "graded.tsv",
        "--steps",
        1,
        "--batch-size",
        4,
        "--offline",
    ]
    ran = run("train", method, *words, "--name", "more")
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[0].split() == ["task", "mini", "trained"]
    expected = pc.evaluate("mini", tasks=["graded.tsv"])[0].value
    more, mini = registry.load("more"), registry.load("mini")
    assert (more.recipe.prompt, more.recipe.pooling) == (mini.recipe.prompt, mini.recipe.pooling)
    facts = more.provenance["trained"]
    for start in (facts["untrained"][0]["value"], facts["curve"][0]["value"]):
        assert start == pytest.approx(expected, abs=0.01)
    shown = run("train", method, "--dry-run", *words, "--json").json
    assert (shown["recipe"]["prompt"], shown["recipe"]["pooling"]) == (
        mini.recipe.prompt,
        mini.recipe.pooling,
    )


REFUSALS = [
    ([], 2, "give a method, e.g. `promptcli train simcse`"),
    (["dcpse"], 2, "did you mean dcpcse?"),
    (["simcse", "--set", "prefix-length=3"], 2, "method simcse has no setting prefix-length"),
    (["consert", "--set", "augment-second=adversarial"], 2, "unknown augment-second 'adversarial'"),
    (["sbert-regression", "--data", "graded.tsv", "--set", "loss=cosin"], 2, "did you mean cosent"),
    (["dcpcse", "--set", "prefix-length=510"], 2, "prefix length 510 is not allowed"),
    (["dcpcse", "--epochs", "0"], 2, "--epochs 0.0 is not allowed"),
    (["dcpcse", "--sweep", "prefix-length"], 2, "--sweep takes FIELD=VALUE"),
    (["dcpcse", "--sweep", "seed=1,2"], 2, "give --seeds N"),
    (["cotbert", *4 * ["--prompt", "[X] [MASK] [MASK]"]], 2, "--prompt is given 4 times"),
    (["cotbert", "--prompt", "[X] [MASK]"], 2, "reads the mask, but template"),
    (["dcpcse", "--supervised"], 2, "--supervised needs pairs or triplets"),
    (["scpcse", "--supervised"], 2, "has no supervised form"),
    (["distill", "--paper"], 2, "no settings of distill are published"),
    (["dcpcse", "--resume"], 2, "no unfinished run"),
    (["dcpcse", "--data", "none.txt"], 3, "none.txt"),
    (
        ["dcpcse", "--data", "wiki1m_for_simcse"],
        3,
        "give the file itself: --data wiki1m_for_simcse.txt",
    ),
    (["defsent", "--batch-size", "2", "--data", "odd.tsv"], 2, "none of the 2 words, 'zxqv' first"),
    (["simcse", "--set", "dims=8,x"], 2, "'8,x' is not allowed"),
    (["cse-sfp"], 2, "are for causal models"),
    (["dcpcse", "--data", "pairs.tsv"], 2, "4 examples are less than one batch of 128; add"),
    (["dcpcse", "--data", "pairs.tsv", "--dry-run"], 2, "add --batch-size 4"),
    (["--resume", "dcpcse", "--dry-run"], 2, "give one of them"),
    (["dcpcse", "--sweep", "prefix-length=2,0", "--dry-run"], 2, "prefix-length"),
    (["dcpcse", "--sweep", "prefix-length=2,0", "--trials", "2", "--dry-run"], 2, "prefix-length"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), REFUSALS)
def test_what_is_refused(arguments, code, message, run, registry):
    refused(run("train", *arguments, "--offline", "-q"), code, message)
    # the name is free for the next try
    assert not [*registry.run_folder("dcpcse").parent.glob("*")]


def test_the_help_and_the_dry_run_tell_the_settings_in_force(run):
    assert "prefix-length" in run("train", "dcpcse", "--help").out
    shown = run("train", "--method", "dcpcse", "--paper", "--dry-run").out
    assert "prefix-length = 16" in shown and "learning-rate = 0.03" in shown
    shown = run("train", "promptbert", "--paper", "--dry-run", "--json").json
    assert shown["views"] == [
        'This sentence of "[X]" means [MASK] .',
        'This sentence : "[X]" means [MASK] .',
    ]
    assert (shown["backbone"], shown["batch_size"], shown["learning_rate"]) == (
        "bert-base-uncased",
        256,
        1e-5,
    )


@pytest.mark.parametrize(
    ("method", "given", "expected"),
    [
        (
            "promptbert",
            {"backbone": "roberta-base", "supervised": True},
            {"batch_size": 512, "head": "tanh, kept"},
        ),
        (
            "dcpcse",
            {},
            {"prefix_length": METHODS["dcpcse"][0].small.prefix_length, "denoising": None},
        ),
        ("distill", {"teacher": "mini"}, {"teacher": "mini"}),
        (
            "simcse",
            {"data": "triplets.tsv", "batch_size": 4},
            {"learning_rate": METHODS["simcse"][1].small.learning_rate},
        ),
        (
            "simcse",
            {"data": "text.txt", "batch_size": 4},
            {"learning_rate": METHODS["simcse"][0].small.learning_rate},
        ),
    ],
)
def test_settings_in_force(method, given, expected, tiny_folder):
    shown = pc.training_settings(method, **(given or {"backbone": str(tiny_folder("bert"))}))
    assert {name: shown.get(name) for name in expected} == expected


@pytest.mark.parametrize("several", [False, True])
def test_a_run_is_resumed_by_its_name_alone_from_any_folder(
    several, run, options, monkeypatch, tmp_path, registry
):
    arguments = [
        "train",
        "dcpcse",
        *options,
        "--set",
        "prefix-length=2",
        "--set",
        "eval-steps=1",
        "--on",
        "graded.tsv",
    ]
    arguments += ["--sweep", "temperature=0.05,0.1"] if several else []
    assert run(*arguments, "--name", "whole").code == 0
    with stopped_at(monkeypatch, 2):
        assert run(*arguments, "--name", "soft").code == 130
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    refused(run("train", "--resume", "sof", "--offline", "-q"), 2, "no unfinished run of 'sof'")
    ran = run("train", "--resume", "soft", "--offline")
    assert ran.code == 0, ran.err
    soft, whole = registry.load("soft"), registry.load("whole")
    assert soft.recipe == whole.recipe and [row["value"] for row in soft.scores] == [
        row["value"] for row in whole.scores
    ]
    assert all(torch.equal(soft.tensors[key], tensor) for key, tensor in whole.tensors.items())
    assert not registry.run_folder("soft").parent.exists()


def test_a_run_that_is_named_by_its_method_is_resumed_by_that_name(
    run, options, monkeypatch, registry
):
    with stopped_at(monkeypatch, 1):
        assert (
            run("train", "simcse", *options, "--name", "dcpcse", "--set", "eval-steps=1").code
            == 130
        )
    refused(
        run("train", "--method", "dcpcse", "--resume", "dcpcse", "--offline", "-q"),
        2,
        "started with method 'simcse', not 'dcpcse'",
    )
    assert run("train", "--resume", "dcpcse", "--offline").code == 0
    assert registry.card("dcpcse").provenance["trained"]["method"] == "simcse"


def test_what_was_in_memory_is_given_again(run, options, monkeypatch, tiny_folder):
    given = {
        "backbone": str(tiny_folder("bert")),
        "data": FILES["text.txt"],
        "name": "mine",
        "eval_steps": 1,
    }
    given |= {"batch_size": 8, "steps": 3, "offline": True}
    with stopped_at(monkeypatch, 1), pytest.raises(KeyboardInterrupt):
        pc.train("simcse", **given)
    with pytest.raises(
        UsageError, match="the `data` of this run were in memory, not in files; give them again"
    ):
        pc.train(name="mine", resume=True)
    assert pc.train(name="mine", resume=True, data=FILES["text.txt"]).facts["steps"] == 3


def test_all_runs_of_a_sweep_stay_in_the_record(run, options, registry):
    sweep = ["--sweep", "prefix-length=2,3", "--set", "eval-steps=2"]
    ran = run("train", "dcpcse", *options, *sweep, "--name", "best")
    assert ran.code == 0, ran.err
    heads, first, *_ = [line.split() for line in ran.out.splitlines()]
    assert first[heads.index("std")] == "-"  # one seed has none
    runs = run("models", "show", "best", "--runs", "--json").json
    assert [row["changes"] for row in runs] == [{"prefix_length": 2}, {"prefix_length": 3}]
    [chosen] = [row for row in runs if row["chosen"]]
    length = chosen["changes"]["prefix_length"]
    assert (
        f"demo:dev chose prefix-length {length}; all runs: promptcli models show best --runs"
        in ran.err
    )
    assert registry.card("best").recipe.prompt == f"deep-prefix:{length}"
    assert all([score["task"] for score in row["scores"]] == ["demo:dev", "demo"] for row in runs)
    assert all([score["step"] for score in row["curve"]] == [0, 2, 3] for row in runs)
    lines = run("models", "show", "best", "--runs").out.splitlines()
    assert (
        lines[0].split() == ["prefix-length", "demo:dev", "demo", "best", "step", "chosen"]
        and len(lines) == 3
    )
    assert [line.split()[0] for line in lines if line.endswith("*")] == [str(length)]
    refused(run("models", "show", "mini", "--runs"), 2, "not of several runs")
    told = run("train", "dcpcse", *options, *sweep, "--name", "best", "--force", "--json").json
    assert told["chosen"] == chosen["changes"] and all(
        row["std"] is None for row in told["summary"]
    )


@pytest.mark.parametrize("second", [["--force"], ["--resume"], [], ["--seeds", 2, "--force"]])
def test_a_run_keeps_others_from_its_name_while_it_lasts(
    second, run, options, monkeypatch, registry
):
    """The other command begins in the middle of a step of the first."""
    gradients, others = Trainer.gradients, []

    def in_the_meantime(trainer, number, *given):
        if number == 2 and not others:
            others.append(None)
            others.append(run("train", "simcse", *options, "--name", "t", *second))
        return gradients(trainer, number, *given)

    monkeypatch.setattr(Trainer, "gradients", in_the_meantime)
    first = run("train", "simcse", *options, "--name", "t", "--set", "eval-steps=1")
    assert first.code == 0, first.err
    refused(
        others[1],
        2,
        f"the training of 't' is running: process {os.getpid()} on ",
        "wait until it ends",
    )
    assert "t" in registry.names() and not [*registry.run_folder("t").parent.glob("*")]


@pytest.mark.parametrize("force", [False, True])
def test_a_model_that_appears_while_one_is_trained_is_kept_or_replaced(
    force, run, options, monkeypatch, registry
):
    entry, gradients = registry.load("mini-static"), Trainer.gradients

    def in_the_meantime(trainer, number, *given):
        registry.save(dataclasses.replace(entry, name="t"), force=True)
        return gradients(trainer, number, *given)

    monkeypatch.setattr(Trainer, "gradients", in_the_meantime)
    ran = run("train", "simcse", *options, "--name", "t", *(["--force"] if force else []))
    if force:
        assert ran.code == 0, ran.err
    else:
        assert (
            ran.code == 2
            and "'t' appeared during the training, whose run is kept: --resume replaces" in ran.err
        )
        assert registry.load("t").recipe == entry.recipe
        assert run("train", "--resume", "t", "--offline").code == 0
    assert "trained" in registry.card("t").provenance


@pytest.mark.parametrize("more", [[], ["--force"]])
def test_a_users_own_model_is_not_taken_for_a_run_of_a_sweep(more, run, options, registry):
    own = registry.save(dataclasses.replace(registry.load("mini-static"), name="two.run-2"))
    words = ["train", "simcse", *options, "--seeds", 2, "--name", "two", "-q", *more]
    refused(run(*words), 2, "model 'two.run-2' has the name of a run of 'two'")
    assert (
        registry.load("two.run-2").created == own.created
        and not registry.run_folder("two.sweep").exists()
    )


@pytest.mark.parametrize(
    ("method", "remedies"),
    [
        ("simcse", ["use sbert-regression", "graded.tsv:sentence1,sentence2"]),
        ("sbert", ["use sbert-regression"]),
    ],
)
def test_graded_pairs_of_a_method_that_reads_none(method, remedies, run, tmp_path):
    graded = tmp_path / "graded.tsv"
    graded.write_text("\n".join(FILES["graded.tsv"]))
    ran = run("train", method, "--data", graded, *SMALL)
    refused(ran, 2, f"has graded pairs, which {method} does not read", *remedies)
