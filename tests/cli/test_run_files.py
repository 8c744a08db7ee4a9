"""The options of a training in a file: written by a dry run, read by --config."""

import pytest

from tests.embed_running import refused

DRY = ["--dry-run", "--format", "toml"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["simcse", "--batch-size", 32, "--set", "mine-margin=0.1", "--set", "keep-head=true"],
        ["dcpcse", "--paper", "--set", "prefix-length=5", "--seeds", 3],
        ["promptbert", "--prompt", 'It is "[X]", i.e. [MASK] .', "--prompt", "[X] é [MASK]"],
        ["simcse", "--sweep", "temperature=0.03..0.1", "--trials", 4, "--test", "demo"],
        ["simcse", "--sweep", "temperature=0.03,0.1", "--sweep", "batch-size=8,16"],
        ["simcse", "--name", "mine", "--report-to", "tensorboard"],
        ["simcse", "--dtype", "bfloat16"],
    ],
    ids=lambda words: " ".join(map(str, words[:3])),
)
def test_what_is_written_is_read(words, run, folder):
    written = run("train", *words, *DRY)
    assert written.code == 0, written.err
    (folder / "run.toml").write_text(written.out)
    again = run("train", "--config", "run.toml", *DRY)
    assert again.out == written.out, again.err
    shown = run("train", *words, "--dry-run", "--json").json
    assert run("train", "--config", "run.toml", "--dry-run", "--json").json == shown


def test_what_is_typed_wins(run, folder):
    lines = ["method = 'simcse'", "batch-size = 32", "mine-margin = 0.1", "dropout = 0.2"]
    (folder / "run.toml").write_text("\n".join(lines))
    typed = ["--batch-size", 16, "--set", "mine-margin=0.3"]
    shown = run("train", "--config", "run.toml", *typed, "--dry-run", "--json").json
    assert (shown["method"], shown["batch_size"]) == ("simcse", 16)
    assert (shown["mine_margin"], shown["dropout"]) == (0.3, 0.2)
    lines = ["method = 'simcse'", "batch-size = 32"]
    (folder / "run.toml").write_text("\n".join(lines))
    shown = run("train", "dcpcse", "--config", "run.toml", "--dry-run", "--json").json
    assert (shown["method"], shown["batch_size"]) == ("dcpcse", 32)


def test_the_precision_of_a_file_is_in_force_unless_another_is_typed(run, folder):
    (folder / "run.toml").write_text("method = 'simcse'\ndtype = 'bfloat16'")
    words = ["train", "--config", "run.toml", "--dry-run", "--json"]
    assert run("train", "simcse", "--dry-run", "--json").json["dtype"] == "auto"
    assert run(*words).json["dtype"] == "bfloat16"
    assert run(*words, "--dtype", "float32").json["dtype"] == "float32"
    assert run("--dtype", "float32", *words).json["dtype"] == "float32"


def test_the_papers_settings_are_for_an_own_backbone_too(run):
    shown = run("train", "promptbert", "--paper", "--backbone", "mini-bert", "--dry-run", "--json")
    assert shown.code == 0, shown.err
    told = shown.json
    assert (told["batch_size"], told["temperature"], told["optimizer"]) == (
        256,
        0.05,
        "adamw-4.2.1",
    )
    assert told["preset"].startswith("published for bert-base-uncased")


def test_a_training_by_a_file(run, folder, tiny_folder):
    (folder / "text.txt").write_text("\n".join(f"a dog runs {number}" for number in range(12)))
    lines = ["method = 'simcse'", "data = 'text.txt'", "steps = 1", "batch-size = 4"]
    lines += [f"backbone = '{tiny_folder('bert')}'", "name = 'mine'", "dropout = 0.3"]
    (folder / "run.toml").write_text("\n".join(lines))
    ran = run("train", "--config", "run.toml")
    assert ran.code == 0, ran.err
    facts = run("models", "show", "mine", "--json").json["provenance"]["trained"]
    assert (facts["steps"], facts["batch_size"], facts["dropout"]) == (1, 4, 0.3)


@pytest.mark.parametrize(
    ("content", "code", "parts"),
    [
        ("bach-size = 3", 2, ["unknown key of run.toml 'bach-size'", "did you mean batch-size?"]),
        ("batch-size = 'x'", 2, ["--batch-size"]),
        ("batch-size = [1, 2]", 2, ["--config run.toml", "batch-size takes one value"]),
        ("batch-size = [", 2, ["--config run.toml: not TOML"]),
        ("paper = 'yes'", 2, ["paper takes true or false, not yes"]),
        ("batch-size = true", 2, ["batch-size takes a value, not true"]),
        ("dropout = 'x'", 2, ["dropout: 'x' is not allowed"]),
        ("json = true", 2, ["unknown key of run.toml 'json'"]),
        ("prefix-length = 3", 2, ["simcse has no setting prefix-length"]),
    ],
)
def test_what_is_refused(content, code, parts, run, folder):
    (folder / "run.toml").write_text(f"method = 'simcse'\n{content}")
    refused(run("train", "--config", "run.toml", "--dry-run"), code, *parts)


def test_other_refusals(run):
    refused(run("train", "--config", "none.toml"), 3, "none.toml: no such file", "--format toml")
    refused(run("train", "--config", "."), 2, "--config . cannot be read")
    refused(run("train", "simcse", "--format", "toml"), 2, "--format takes toml, with --dry-run")
    refused(run("train", "simcse", "--dry-run", "--format", "yaml"), 2, "--format takes toml")
