"""`promptcli train`: its options, its output, its files of options, and two processes."""

import pytest
import torch

from promptcli.models.entries import Registry
from tests.comparing import refused
from tests.processes import Program, ranks_of_two
from tests.training_files import FILES
from tests.training_steps import stopped_at


@pytest.fixture(autouse=True)
def files(here):
    for name in ("text.txt", "graded.tsv"):
        (here / name).write_text("\n".join(FILES[name]) + "\n")


@pytest.fixture
def options(bert_folder):
    few = ["--data", "text.txt", "--on", "graded.tsv", "--batch-size", 8, "--set", "eval-steps=1"]
    few += ["--steps", 3, "--learning-rate", 0.01, "--offline"]
    return ["--backbone", bert_folder, *few]


def test_a_run_prints_its_scores_and_keeps_what_was_typed(run, options, registry):
    ran = run("train", "--method", "optiprompt", *options, "--name", "soft")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    # the shipped model stands beside its own backbone only
    assert lines[0].split() == ["task", "untrained", "untrained", "start", "trained"]
    assert len(lines[lines.index("") + 2 :]) >= 5  # words and the nearest to them
    assert "step 0/" in ran.err and "examples/s" in ran.err
    facts = registry.load_manifest("soft").provenance["trained"]
    assert facts["command"].startswith("promptcli train --method optiprompt")
    assert facts.keys() >= {"curve", "data", "seed", "versions", "scores", "nearest_words"}
    assert run("optiprompt", *options, "--name", "other", "--json").json["model"] == "other"


def test_two_processes_make_one_entry(options, tmp_path):
    arguments = ["train", "dcpcse", *options, "--set", "dropout=0", "--set", "prefix-length=2"]
    arguments += ["--json", "--dtype", "float32"]
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


def test_a_stopped_run_says_how_it_goes_on(run, options, monkeypatch, registry):
    with stopped_at(monkeypatch, 1):
        stopped = run("train", "simcse", *options, "--name", "dcpcse")
    assert stopped.code == 130
    assert "`promptcli train --resume dcpcse` continues the run, --force starts" in stopped.err
    refused(run("train", "simcse", *options, "--name", "dcpcse", "-q"), 2, "unfinished run")
    refused(
        run("train", "--method", "dcpcse", "--resume", "dcpcse", "-q"),
        2,
        "started with method 'simcse', not 'dcpcse'",
    )
    assert run("train", "--resume", "dcpcse").code == 0
    assert registry.load_manifest("dcpcse").provenance["trained"]["method"] == "simcse"
    assert "done: model 'dcpcse'" in run("train", "--resume", "dcpcse").err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "METHOD: is missing; methods: promptbert"),
        (["simcse", "--set", "prefix-length=3"], "unknown setting 'prefix-length'"),
        (["dcpcse", "--set", "prefixlength=3"], "did you mean prefix-length?"),
        (["dcpcse", "--prefix-length", 3], "--prefix-length"),
        (["dcpcse", "--epochs", "0"], "epochs"),
        (["simcse", "--set", "foo=1"], "keep-head, dims, mlm-weight, mlm-head"),
        (["simcse", "--set", "dims=8,x"], "--set dims"),
        (["dcpcse", "--resume", "--offline"], "no unfinished run"),
        (["dcpcse", "--supervised"], "--supervised"),
        (["dcpcse", "--from", "mini"], "--from"),
        (["dcpcse", "--resume", "--dry-run"], "--dry-run"),
        (["dcpcse", "--format", "toml"], "--format"),
    ],
)
def test_a_refusal_names_what_is_typed(words, said, run):
    refused(run("train", *words, "-q"), 2, said)


def test_the_dry_run_tells_the_settings_in_force(run):
    shown = run("train", "dcpcse", "--paper", "--dry-run").out
    assert "prefix-length = 16" in shown and "learning-rate = 0.03" in shown
    shown = run("train", "promptbert", "--paper", "--dry-run", "--json").json
    assert len(shown["views"]) == 2 and shown["backbone"] == "bert-base-uncased"


DRY = ["--dry-run", "--format", "toml"]


@pytest.mark.parametrize(
    "words",
    [
        ["simcse", "--batch-size", 32, "--set", "mine-margin=0.1", "--set", "keep-head=true"],
        ["dcpcse", "--paper", "--set", "prefix-length=5", "--set", "dropout=0"],
        ["promptbert", "--prompt", 'It is "[X]", i.e. [MASK] .', "--prompt", "[X] é [MASK]"],
        ["simcse", "--name", "mine", "--report-to", "tensorboard", "--test", "demo"],
        ["simcse", "--dtype", "bfloat16"],
    ],
    ids=lambda words: " ".join(map(str, words[:3])),
)
def test_a_file_of_options_is_written_and_read(words, run, tmp_path):
    written = run("train", *words, *DRY)
    assert written.code == 0, written.err
    (tmp_path / "run.toml").write_text(written.out)
    again = run("train", "--config", "run.toml", *DRY)
    assert again.out == written.out, again.err
    shown = run("train", *words, "--dry-run", "--json").json
    assert run("train", "--config", "run.toml", "--dry-run", "--json").json == shown


def test_what_is_typed_wins_over_a_file(run, tmp_path):
    lines = ["method = 'simcse'", "batch-size = 32", "mine-margin = 0.1", "dtype = 'bfloat16'"]
    (tmp_path / "run.toml").write_text("\n".join(lines))
    words = ["train", "dcpcse", "--config", "run.toml", "--batch-size", 16]
    shown = run(*words, "--set", "mine-margin=0.3", "--dry-run", "--json").json
    assert (shown["method"], shown["batch_size"], shown["mine_margin"]) == ("dcpcse", 16, 0.3)
    assert shown["dtype"] == "bfloat16"
    assert run(*words, "--dry-run", "--json", "--dtype", "float32").json["dtype"] == "float32"
    (tmp_path / "run.toml").write_text("batchsize = 32")
    refused(run("train", "simcse", "--config", "run.toml"), 2, "did you mean batch-size?")
    refused(run("train", "--config", "none.toml"), 3, "--config: none.toml", "--format toml writes")
    (tmp_path / "run.toml").write_text("batch-size = 'x'")
    refused(run("train", "simcse", "--config", "run.toml"), 2, "--batch-size")


def test_one_text_in_a_file_of_options_is_one_of_several(run, tmp_path):
    lines = ["data = 'text.txt'", "prompt = '[X] is [MASK]'", "test = 'graded.tsv'", "epochs = 2"]
    (tmp_path / "run.toml").write_text("\n".join([*lines, "batch-size = 2"]))
    shown = run("train", "promptbert", "--config", "run.toml", "--dry-run", "--json").json
    assert (shown["data"], shown["views"]) == ("text.txt", ["[X] is [MASK]"] * 2)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("report-to = ['tensorboard']", "--report-to: run.toml: Expected `str`, got `array`"),
        ("method = 3", "METHOD: run.toml: Expected `str`"),
        ("csv = {delim = ';'}", "--csv: run.toml: Expected `array`"),
        ("data = [3]", "--data: run.toml: Expected `str`"),
        ("data-dir = 3", "--data-dir: run.toml: Expected `str`"),
        ("keep-head = 'yes'", "--set keep-head: run.toml: Expected `bool`"),
        ("method-option = 'simcse'", "unknown key"),
    ],
)
def test_a_value_of_another_type_in_a_file_of_options_is_refused(line, said, run, tmp_path):
    (tmp_path / "run.toml").write_text(line)
    refused(run("train", "--config", "run.toml", "-q"), 2, said)
