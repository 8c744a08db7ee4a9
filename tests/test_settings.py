"""The user's defaults: environment before file before what is built in.

What bare commands assume and say.
"""

import math
import pwd

import pytest

from promptcli.models.loading import resolve_entry
from promptcli.recipe import ModelChoice
from promptcli.settings import (
    BUILT_IN,
    PAPER,
    config_file,
    read_settings,
    spell_settings,
    spell_value,
)
from promptcli.training.methods import METHODS
from tests.comparing import refusal, refused


def test_the_environment_comes_before_the_file(tmp_path):
    environ = {"PROMPTCLI_HOME": str(tmp_path)}
    held = read_settings(environ)
    assert {name: setting.value for name, setting in held.items()} == {
        "backbone": "mini-bert",
        "data_dir": None,
    }
    config_file(environ).write_text('backbone = "one"\ndata_dir = "there"\n')
    held = read_settings(environ)
    assert (held["backbone"].value, held["backbone"].source) == (
        "one",
        str(tmp_path / "config.toml"),
    )
    held = read_settings({**environ, "PROMPTCLI_BACKBONE": "other"})
    assert (held["backbone"].value, held["backbone"].source) == ("other", "$PROMPTCLI_BACKBONE")
    assert held["data_dir"].value == "there"
    assert config_file({}).name == "config.toml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("backbone = ", r"config\.toml: not TOML"),
        ("backbon = 'x'", "unknown key 'backbon'.*did you mean backbone"),
        ("backbone = 3", "`str`"),
        ("backbone = nan", "not finite"),
        ("backbone = " + 2000 * "[" + 2000 * "]", "nested deeper"),
        ("backbone = " + 5000 * "1", "not TOML"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, text, message):
    (tmp_path / "config.toml").write_text(text)
    with refusal(message):
        read_settings({"PROMPTCLI_HOME": str(tmp_path)})


def test_settings_are_shown_as_they_are_typed():
    values = [1.0, 2.5, 1e-5, 30, True, "1.0"]
    assert [spell_value(value) for value in values] == ["1", "2.5", "1e-05", "30", "true", "1.0"]
    changes = {"epochs": 2.0, "keep_head": False}
    assert spell_settings(changes) == ["epochs 2", "keep-head false"]


def test_config_shows_sets_and_unsets(run, home, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_DATA_DIR", "/data")
    ran = run("config")
    assert (
        "backbone = mini-bert  (built in;" in ran.out
        and "data_dir = /data  ($PROMPTCLI_DATA_DIR;" in ran.out
    )
    shown = run("config", "--json").json
    assert shown["settings"]["backbone"] == {"value": "mini-bert", "source": "built in"}
    monkeypatch.delenv("PROMPTCLI_DATA_DIR")
    file = home / "config.toml"
    home.mkdir(exist_ok=True)
    file.write_text("backbone = 'one'\n")
    folder = home / 'a "folder" \\ ü'
    refused(run("config", "data_dir", folder), 2, "no folder")
    folder.mkdir()
    ran = run("config", "data_dir", folder)
    assert (ran.code, ran.out) == (0, "") and "config.toml" in ran.err
    held = read_settings({"PROMPTCLI_HOME": str(home)})
    assert (held["backbone"].value, held["data_dir"].value) == ("one", str(folder))
    assert run("config", "backbone", "--unset").code == 0
    assert read_settings({"PROMPTCLI_HOME": str(home)})["backbone"].source == "built in"
    assert sorted(path.name for path in home.iterdir()) == [folder.name, "config.toml"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("backbon", "x"), "mean backbone"),
        (("backbone", " "), "not a value"),
        (("backbone", "x", "--unset"), "--unset"),
        (("--unset",), "--unset"),
    ],
)
def test_what_config_cannot_set_is_one_line_and_changes_nothing(run, home, arguments, said):
    refused(run("config", *arguments), 2, said)
    assert not (home / "config.toml").exists()


def test_a_backbone_of_the_environment_holds(run, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_BACKBONE", "no/where")
    refused(run("similarity", "a", "b", "--offline"), 3, "no/where'", "$PROMPTCLI_BACKBONE names")


def test_another_default_backbone_holds_if_none_is_named(home, bert_folder):
    environ = {"PROMPTCLI_HOME": str(home), "PROMPTCLI_BACKBONE": str(bert_folder)}
    backbone = read_settings(environ)["backbone"].value

    def of(**choice):
        return resolve_entry(ModelChoice(**choice, backbone=backbone)).recipe.backbone

    assert of() == of(model="static-avg") == backbone
    assert of(model="mini") == "mini-bert"  # an entry keeps its backbone
    assert of(changes={"backbone": "mini-bert"}) == "mini-bert"


def test_bare_commands_say_what_they_assume(run, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("a dog runs\nthe red house\n")
    ran = run("embed", lines, "--offline")
    assert ran.err.count("using the default model mini (English)") == 1
    assert "default model" not in run("embed", lines, "--force", "--model", "cls", "--offline").err
    ran = run("eval", "--model", "cls", "--offline")
    assert ran.code == 0
    assert "using the shipped demo pairs" in ran.err
    assert ran.out.splitlines()[2].split() == ["demo"]


def test_paper_is_the_setting_of_the_papers(run):
    assert (BUILT_IN.backbone, PAPER.backbone) == ("mini-bert", "bert-base-uncased")
    refused(run("eval", "cls", "--paper", "--offline", "-q"), 3)


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("~nobody-of-this-name/models", "type the full path"),
        ("/dev/null/models", "Not a directory"),
        ("/dev/null", "File exists"),
        ("home\udcff", "is not UTF-8; name another folder: PROMPTCLI_HOME"),
    ],
)
def test_a_home_that_cannot_be_is_one_line(folder, said, run, monkeypatch, here):
    monkeypatch.setenv("PROMPTCLI_HOME", folder)
    refused(run("config", "backbone", "mini-bert"), 2, said)
    assert not list(here.iterdir())


def test_a_user_without_a_home_is_told_to_name_one(run, monkeypatch):
    def nobody(number):
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("PROMPTCLI_HOME", "HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    refused(run("config", "backbone", "mini-bert"), 2, "PROMPTCLI_HOME")


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, True, "1"])
def test_settings_keep_to_their_types_and_bounds(value):
    with refusal(r"is not allowed|; give "):
        METHODS["simcse"][0].mini_bert_settings.replace(epochs=value)
