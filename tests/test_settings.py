"""The user's defaults: environment before file before what is built in; what bare commands assume and say."""

import json

import numpy as np
import pytest

from promptcli.errors import UsageError
from promptcli.settings import BARE, KEYS, PAPER, config_file, read_settings


def test_the_environment_comes_before_the_file(tmp_path):
    environ = {"PROMPTCLI_HOME": str(tmp_path)}
    assert {name: held.value for name, held in read_settings(environ).items()} == {
        "backbone": "mini-bert",
        "data_dir": None,
    }
    config_file(environ).write_text('backbone = "one"\ndata_dir = "there"\n')
    held = read_settings(environ)
    assert (held["backbone"].value, held["backbone"].source) == ("one", str(tmp_path / "config.toml"))
    held = read_settings({**environ, "PROMPTCLI_BACKBONE": "other"})
    assert (held["backbone"].value, held["backbone"].source) == ("other", "$PROMPTCLI_BACKBONE")
    assert held["data_dir"].value == "there"
    assert config_file({}).name == "config.toml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("backbone = ", r"config\.toml: not TOML"),
        ("backbon = 'x'", "unknown key 'backbon'.*did you mean backbone"),
        ("backbone = 3", "'backbone': must be text"),
        ("backbone = nan", "not finite"),
        ("backbone = " + 2000 * "[" + 2000 * "]", "nested deeper"),
        ("backbone = " + 5000 * "1", "not TOML"),
        ("backbone = 'x'\nbackbone = 'y'", "not TOML"),
    ],
)
def test_a_bad_file_is_said_in_one_line(tmp_path, run, text, message):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_settings({"PROMPTCLI_HOME": str(tmp_path / "home")})
    ran = run("similarity", "a", "b")
    assert (ran.code, len(ran.err.strip().splitlines())) == (2, 1)


def test_config_show_says_what_holds_and_why(run, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_DATA_DIR", "/data")
    ran = run("config")
    assert "backbone = mini-bert  (built in;" in ran.out
    assert "data_dir = /data  ($PROMPTCLI_DATA_DIR;" in ran.out
    shown = json.loads(run("config", "--json").out)
    assert shown["settings"].keys() == KEYS.keys()
    assert shown["settings"]["backbone"] == {"value": "mini-bert", "source": "built in"}


def test_config_set_and_unset_keep_the_rest_of_the_file(run, home):
    file = home / "config.toml"
    home.mkdir()
    file.write_text("# my own\nbackbone = 'one'\n")
    ran = run("config", "data_dir", 'a "folder" \\ ü')
    assert (ran.code, ran.out) == (0, "") and "config.toml" in ran.err
    held = read_settings({"PROMPTCLI_HOME": str(home)})
    assert (held["backbone"].value, held["data_dir"].value) == ("one", 'a "folder" \\ ü')
    assert run("config", "backbone", "--unset").code == 0
    assert read_settings({"PROMPTCLI_HOME": str(home)})["backbone"].source == "built in"
    assert file.read_text().startswith("# my own\n") and sorted(path.name for path in home.iterdir()) == ["config.toml"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("backbon", "x"), "did you mean backbone"),
        (("data-dir", "--unset"), "did you mean data_dir"),
        (("backbone", " "), "not a value"),
        (("backbone", "a\nb"), "not a value"),
    ],
)
def test_what_config_cannot_set_is_one_line_and_changes_nothing(run, home, arguments, said):
    ran = run("config", *arguments)
    assert (ran.code, ran.out) == (2, "") and said in ran.err and ran.err.count("\n") == 1
    assert not (home / "config.toml").exists()


def test_the_environment_that_overrules_a_set_default_is_said(run, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_BACKBONE", "other")
    assert "$PROMPTCLI_BACKBONE = other comes before the file" in run("config", "backbone", "x").err


def test_another_default_backbone_holds_where_none_is_named(run, monkeypatch, tiny_folder, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("a dog runs\nthe red house\n")
    monkeypatch.setenv("PROMPTCLI_BACKBONE", str(tiny_folder("bert")))

    def vectors(*options):
        assert run("embed", lines, "-o", tmp_path / "v.npy", "--force", "--dtype", "float32", *options).code == 0
        return np.load(tmp_path / "v.npy")

    tiny = vectors()
    assert tiny.shape[1] < 100
    assert np.array_equal(tiny, vectors("--backbone", tiny_folder("bert")))
    assert vectors("--model", "static-avg").shape == tiny.shape
    assert vectors("--model", "mini").shape[1] > 100  # an entry is what it is
    assert vectors("--backbone", "mini-bert").shape[1] > 100  # a flag comes before all


@pytest.mark.usefixtures("few_demo_pairs")
def test_bare_commands_say_what_they_assume(run, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("a dog runs\nthe red house\n")
    ran = run("embed", lines, "--offline")
    assert ran.err.count("assumed: mini") == 1
    assert "assumed" not in run("embed", lines, "--force", "--model", "cls", "--offline").err
    ran = run("eval", "--model", "cls", "--offline")
    assert ran.code == 0
    assert "assumed: our own demo pairs" in ran.err
    assert ran.out.splitlines()[2].split() == ["demo"]


def test_paper_names_the_papers_setting(run):
    assert (BARE.backbone, PAPER.backbone) == ("mini-bert", "bert-base-uncased")
    for arguments in (("eval",), ("eval", "cls")):
        ran = run(*arguments, "--paper", "--offline")
        assert ran.code == 3
        assert "bert-base-uncased" in ran.err or "STS12 is missing" in ran.err
