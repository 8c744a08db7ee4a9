"""`promptcli train`: settings in force, sweeps and seeds, what it says and draws, launches of several processes."""

import csv
import itertools
import json
import os
import statistics

import pytest
import torch

from promptcli.models.registry import Registry, home
from promptcli.training.methods import find_method, forms
from promptcli.training.methods.training_settings import ContrastiveSettings, TrainingSettings
from promptcli.training.run import DevScore, has_diverged
from tests.processes import Program, ranks_of_two
from tests.tiny import SENTENCES

PAIRED = [(one, other) for one in SENTENCES[:6] for other in SENTENCES[:6]]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"{one} {other}" for one in SENTENCES for other in SENTENCES[:4]))
    return path


@pytest.fixture
def options(text, tiny_folder):
    few = ["--data", text, "--batch-size", 8, "--set", "eval-steps=3", "--epochs", 0.5, "--learning-rate", 0.01]
    return ["--backbone", tiny_folder("bert"), *few, "--offline"]


def test_each_method_has_settings_of_its_own_and_starts_from_known_ones():
    for method in forms():
        base = "facebook/opt-1.3b" if method.name == "prompteol" else "bert-base-uncased"
        assert method.settings("mini-bert", 256) is method.small
        if not method.paper:
            assert method.settings("somewhere/unknown", 768) is method.small
            continue
        assert method.settings("somewhere/unknown", 768) == method.paper[base]
        published = method.published(base)
        if isinstance(method.small, ContrastiveSettings):
            assert published.mask_duplicates is False
        own = method.small.own()
        assert ("bias_positions" in own) is (method.name == "promptbert")
        assert ("slots" in own) is (method.name == "optiprompt")
        assert getattr(published, "bias_positions", "code") == "code"
        assert getattr(published, "slots", "lookup") == "lookup"
        assert set(own).isdisjoint(TrainingSettings.__dataclass_fields__)


def test_the_code_selects_promptbert_denoised_and_without_the_period_rule():
    method = find_method("promptbert", supervised=False)
    recipe = method.recipe("x", "bert", method.small)
    assert (recipe.denoise, recipe.period) == ("none", True)
    assert method.selecting(recipe, method.small, "bert") == recipe
    code = method.selecting(recipe, method.small.replace(selection="code"), "bert")
    assert (code.denoise, code.period) == ("hidden", False)
    other = find_method("promptbert", supervised=True)
    assert other.recipe("x", "roberta", other.small.replace(bias_positions="code")).denoise == "hidden:code"
    assert other.recipe("x", "bert", other.small.replace(denoising=False)).denoise == "none"
    one = method.variant("bert").prompts(method.small.replace(two_templates=False))
    assert one[0] == one[1] != method.variant("bert").prompts(method.small)[1]


def test_given_templates_are_the_views_the_recipe_and_the_baseline():
    one, two = "[X] : [MASK]", "[MASK] is {p} [X]"
    method = find_method("promptbert", supervised=False)
    for given, views in (((one,), (one, one)), ((one, two), (one, two))):
        settings = method.small.replace(template=given)
        assert method.variant("bert").prompts(settings) == views
        assert method.recipe("x", "bert", settings).prompt == one == method.baseline("x", "bert", settings).prompt
    assert method.variant("bert").prompts(method.small.replace(template=(one, two), two_templates=False)) == (one, one)
    soft = find_method("optiprompt", supervised=False)
    settings = soft.small.replace(template=(two,), slots="lookup")
    assert soft.recipe("x", "bert", settings).prompt == f"soft-template-lookup:{two}"
    assert soft.baseline("x", "bert", settings).prompt == two


@pytest.mark.usefixtures("few_demo_pairs")
def test_a_template_is_an_option_of_the_methods_that_have_one(run, options, tmp_path):
    ran = run("train", "--method", "promptbert", *options, "--prompt", "[X] is [MASK] .", "--name", "mine", "--json")
    assert ran.code == 0, ran.err
    entry = Registry(tmp_path / "home").load("mine")
    assert entry.recipe.prompt == "[X] is [MASK] ."
    assert entry.provenance["trained"]["template"] == ["[X] is [MASK] ."]
    (before,) = json.loads(
        run(
            "eval", *options[:2], "--prompt", "[X] is [MASK] .", "--pooling", "last/mask", "--json", "--task", "demo"
        ).out
    )["results"]
    assert json.loads(ran.out)["scores"][1]["untrained"] == pytest.approx(before["value"], abs=0.01)


@pytest.mark.usefixtures("few_demo_pairs")
def test_a_taken_name_is_refused_unless_it_is_replaced(run, options, tmp_path):
    words = ["train", "simcse", *options, "--json"]
    assert run(*words).code == 0
    refused = run(*words)
    assert refused.code == 2 and "'simcse'" in refused.err and "`force`" in refused.err
    assert run(*words, "--force", "--seed", 3).code == 0
    assert Registry(tmp_path / "home").load("simcse").provenance["trained"]["seed"] == 3


@pytest.mark.usefixtures("few_demo_pairs")
def test_a_sweep_over_seeds_is_one_table_and_its_best_is_kept(run, options, tmp_path):
    picture = tmp_path / "sweep.png"
    ran = run(
        "train", "--method", "dcpcse", *options, "--seeds", 2, "--sweep", "prefix-length=2,3", "temperature=0.05",
        "--plot", picture, "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    told = json.loads(ran.out)
    assert [(row["changes"]["prefix_length"], row["seed"]) for row in told["runs"]] == [(2, 0), (2, 1), (3, 0), (3, 1)]
    figures = [[row["trained"] for row in one["scores"]] for one in told["runs"]]
    values = [test for _, test in figures[2:]]
    (found,) = [one for one in told["summary"] if one["task"] == "demo" and one["changes"]["prefix_length"] == 3]
    assert found["mean"] == pytest.approx(statistics.fmean(values), abs=0.01)
    assert found["std"] == pytest.approx(statistics.stdev(values), abs=0.01)
    assert [found["min"], found["max"]] == pytest.approx(sorted(values), abs=0.01)
    assert values[0] != values[1]
    best = told["runs"][max(range(4), key=lambda at: figures[at][0])]
    registry = Registry(tmp_path / "home")
    entry = registry.load("dcpcse")
    assert entry.recipe.prompt == f"deep-prefix:{best['changes']['prefix_length']}"
    assert entry.provenance["trained"]["seed"] == best["seed"]
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert not [name for name in registry.names() if ".run-" in name]
    shown = run("train", "--method", "dcpcse", *options, "--seeds", 2, "--name", "other")
    assert [line.split()[0] for line in shown.out.splitlines()] == ["task", "demo:dev", "demo"]


@pytest.mark.usefixtures("few_demo_pairs")
def test_a_sweep_that_was_stopped_goes_on(run, options, monkeypatch, tmp_path):
    from promptcli.training.run import Trainer

    whole = Trainer.gradients
    arguments = ["train", "--method", "dcpcse", *options, "--seeds", 3, "--set", "prefix-length=2"]
    arguments += ["--set", "eval-steps=1", "--json"]
    expected = json.loads(run(*arguments, "--name", "whole").out)["summary"]

    def stopping(trainer, number, *given):
        if (trainer.settings.seed, number) == (1, 2):  # the score of step 2 is kept already
            raise KeyboardInterrupt
        return whole(trainer, number, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "gradients", stopping)
        stopped = run(*arguments)
        assert stopped.code != 0 and "resume" in stopped.err
    assert run("models", "show", "dcpcse.run-1").code == 0  # a finished one
    for other in ([], ["--force"]):
        assert "`resume`" in run(*arguments, *other).err
    assert "were started with weight-decay 0.0, not 0.1" in run(*arguments, "--set", "weight-decay=0.1", "--resume").err
    resumed = run(*arguments, "--resume")
    assert resumed.code == 0, resumed.err
    assert json.loads(resumed.out)["summary"] == expected
    assert "no unfinished run" in run(*arguments, "--resume").err


@pytest.mark.usefixtures("few_demo_pairs")
def test_data_of_several_files_are_mixed(run, tiny_folder, tmp_path):
    triplets, pairs = tmp_path / "triplets.csv", tmp_path / "pairs.tsv"
    with triplets.open("w") as file:
        rows = [(one, other, "" if number % 3 else one) for number, (one, other) in enumerate(PAIRED)]
        csv.writer(file).writerows([("sent0", "sent1", "hard_neg"), *rows])
    pairs.write_text("\n".join(["sent0\tsent1", *(f"{one}\t{other}" for one, other in PAIRED[:9])]))
    options = ["--backbone", tiny_folder("bert"), "--data", triplets, "--data", pairs, "--batch-size", 8]
    ran = run(
        "train", "simcse", *options, "--set", "data-temperature=2", "--set", "batches=one-source", "--offline", "--json"
    )
    assert ran.code == 0, ran.err
    assert "33 pairs without a hard negative" in ran.err
    assert "rows an epoch: 30 of 36, 15 of 9" in ran.err
    assert json.loads(ran.out)["steps"] == 6
    trained = Registry(home(os.environ)).card("simcse").provenance["trained"]
    assert (trained["source"], trained["examples"]) == (f"{triplets}, {pairs}", 45)
    assert (trained["batches"], trained["supervised"]) == ("one-source", True)


@pytest.mark.usefixtures("few_demo_pairs")
def test_one_run_says_draws_and_keeps(run, options, tmp_path):
    picture = tmp_path / "curve.svg"
    ran = run("optiprompt", *options, "--name", "soft", "--plot", picture)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].split() == ["task", "untrained", "trained"]
    words = lines[lines.index("") + 2 :]
    assert [line.split()[0] for line in words] == ["this", "sentence", ":", '"', '"', "means", "."] or len(words) >= 5
    assert "step 0/" in ran.err
    assert "examples/s" in ran.err
    assert "<svg" in picture.read_text()
    card = json.loads(run("models", "show", "soft", "--json").out)["provenance"]["trained"]
    assert {"curve", "data", "seed", "versions", "untrained", "nearest_words", "mask_duplicates"} <= card.keys()
    assert "the file is there" in run("optiprompt", *options, "--name", "more", "--plot", picture).err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--method", "simcse", "--set", "prefix-length=3"], 2, "method simcse has no setting prefix-length"),
        (["--method", "dcpcse", "--set", "mlm-head=none"], 2, "unknown mlm-head 'none'"),
        (["--method", "dcpcse", "--sweep", "prefix-length"], 2, "--sweep takes FIELD=VALUE"),
        (["--method", "dcpcse", "--sweep", "length=3"], 2, "unknown setting 'length'"),
        (["--method", "dcpcse", "--sweep", "batch-size=a"], 2, "'a' is not allowed; it takes a whole number"),
        (["--method", "dcpcse", "--sweep", "denoising=true"], 2, "method dcpcse has no setting denoising"),
        (["--method", "dcpcse", "--sweep", "seed=1,2"], 2, "give --seeds N"),
        (["--method", "promptbert", "--sweep", "template=a,b"], 2, "give --prompt, a run for each"),
        (["--method", "promptbert", *3 * ["--prompt", "[X] [MASK]"]], 2, "`template` is given 3 times"),
        (["--method", "promptbert", "--prompt", "[X] is what"], 2, "has no [MASK]"),
        (["--method", "simcse", "--prompt", "[X] [MASK]"], 2, "method simcse has no setting template"),
        (["--method", "dcpcse", "extra=1"], 2, "'extra=1' is not expected here"),
        (["--method", "dcpcse", "--report-to", "nobody"], 2, "`trackers` 'nobody' is unknown or not installed"),
        (["--method", "dcpcse", "--supervised"], 2, "`supervised` needs pairs or triplets"),
        (["--method", "optiprompt", "--supervised"], 2, "has no supervised form"),
        (
            ["--method", "dcpcse", "--data", "wiki1m_for_simcse"],
            3,
            "give the file itself: `data` wiki1m_for_simcse.txt",
        ),
        (["--method", "nothing"], 2, "unknown method 'nothing'"),
        (["--method", "dcpcse", "--batch-size", "100000"], 2, "less than one batch of 100000"),
        (["--method", "dcpcse", "--set", "prefix-length=510"], 2, "prefix length '510' is not allowed"),
        (["--method", "dcpcse", "--paper", "--backbone", "mini-bert"], 2, "no settings of dcpcse are published"),
        (["--method", "dcpcse", "--resume"], 2, "no unfinished run"),
        (["--method", "dcpcse", "--epochs", "0"], 2, "`epochs` 0.0 is not allowed; valid: above 0"),
        (["--method", "dcpcse", "--data", "none.txt"], 3, "none.txt"),
        (["--method", "dcpcse", "--plot", "curve.pdf"], 2, "not a kind of picture"),
    ],
)
def test_what_is_refused(arguments, code, message, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run("train", *arguments, "--offline", "-q")
    assert (ran.code, len(ran.err.strip().splitlines())) == (code, 1), ran.err
    assert message in ran.err


def test_empty_and_repeated_rows_and_a_worse_model_are_reported(run, options, text):
    text.write_text(text.read_text() + "\n\n" + SENTENCES[0] + "\n" + SENTENCES[0] + "\n")
    changed = [1000 if argument == 0.01 else argument for argument in options]
    ran = run("train", "--method", "simcse", *changed)
    assert ran.code == 0, ran.err
    assert "1 rows with an empty sentence left out" in ran.err
    assert "1 rows repeat an earlier row" in ran.err
    assert "made it no better than the untrained encoder" in ran.err


@pytest.mark.parametrize(
    ("first", "value", "pairs", "diverged"),
    [
        (60.0, 3.0, 200, True),
        (60.0, 40.0, 200, False),  # lower, and not noise
        (5.0, 8.0, 200, False),  # noise from the start, and it rises
        (20.0, 5.0, 40, False),  # too few pairs to tell
        (20.0, -60.0, 40, False),
    ],
)
def test_a_run_has_diverged_when_its_score_fell_to_noise(first, value, pairs, diverged):
    start = DevScore(0, None, first, True, 0.0, None, False)
    assert has_diverged(value, [start], pairs) is diverged
    assert not has_diverged(value, [], pairs)


def test_settings_of_unknown_small_backbones_are_minis(run, tiny_folder):
    shown = json.loads(
        run("train", "--method", "dcpcse", "--backbone", tiny_folder("bert"), "--dry-run", "--json", "--offline").out
    )
    assert shown["prefix_length"] == find_method("dcpcse", supervised=False).small.prefix_length
    assert "denoising" not in shown
    wide = run("train", "--method", "promptbert", "--backbone", "roberta-base", "--supervised", "--dry-run", "--json")
    shown = json.loads(wide.out)
    assert (shown["batch_size"], shown["head"], shown["recipe"]["denoise"]) == (512, "tanh, kept", "hidden")


def test_the_help_tells_the_settings_in_force(run):
    shown = " ".join(run("train", "--help").out.split())
    small = find_method("dcpcse", supervised=False).small
    assert f"dcpcse {small.batch_size}, {small.learning_rate:g}, {small.epochs:g}, {small.prefix_length}" in shown


def test_two_processes_make_one_entry(options, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    rows = [f"{one}\t{other}\t{len(one) % 6}" for one, other in itertools.product(SENTENCES, repeat=2)]
    pairs.write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    options += ["--on", pairs]
    settings = ["--set", "dropout=0", "--set", "prefix-length=2"]
    arguments = ["train", "--method", "dcpcse", *map(str, options), *settings, "--json"]
    entries = {}
    for name, ranks in (("two", ranks_of_two()), ("one", [{}])):
        home = {"PROMPTCLI_HOME": str(tmp_path / name)}
        running = [Program(*arguments, "--dtype", "float32", environment={**home, **rank}) for rank in ranks]
        ended = [process.communicate() for process in running]
        assert [process.returncode for process in running] == [0] * len(ranks), ended
        (first, *others) = [out.decode().splitlines() for out, _ in ended]
        assert len(first) == 1 and not any(others)  # one process speaks
        assert json.loads(first[0])["steps"] == 3
        entries[name] = Registry(tmp_path / name).load("dcpcse")
    assert entries["two"].provenance["trained"]["processes"] == 2
    for name, tensor in entries["one"].tensors.items():
        assert torch.allclose(entries["two"].tensors[name], tensor, atol=1e-4)


def test_a_run_that_is_refused_leaves_its_name_free(run, options):
    refused = run("train", "dcpcse", *options, "--set", "prefix-length=5000")
    assert refused.code == 2
    assert "prefix length" in refused.err
    assert not [*Registry(home(os.environ)).run_folder("dcpcse").parent.glob("*")]
    made = run("train", "dcpcse", *options)
    assert made.code == 0, made.err


def test_the_dry_run_reads_what_the_run_would_learn_from(run, text, tmp_path):
    triplets = tmp_path / "triplets.csv"
    triplets.write_text("sent0,sent1,hard_neg\n" + "a b,a c,d e\n" * 4)
    shown = json.loads(run("train", "simcse", "--data", triplets, "--dry-run", "--json").out)
    asked = json.loads(run("train", "simcse", "--data", triplets, "--supervised", "--dry-run", "--json").out)
    assert shown == asked
    plain = json.loads(run("train", "simcse", "--data", text, "--dry-run", "--json").out)
    assert plain["learning_rate"] != shown["learning_rate"]
    assert run("train", "simcse", "--data", tmp_path / "none.csv", "--dry-run").code == 3
