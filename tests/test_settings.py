"""The user's defaults: environment before file before what is built in; what bare commands assume and say."""

import pwd

import pytest

from promptcli.errors import UsageError
from promptcli.models.loading import resolve
from promptcli.models.registry import Registry
from promptcli.recipe import Choice
from promptcli.settings import BARE, KEYS, PAPER, config_file, read_settings
from tests.embed_running import refused


def test_the_environment_comes_before_the_file(tmp_path):
    environ = {"PROMPTCLI_HOME": str(tmp_path)}
    held = read_settings(environ)
    assert {name: setting.value for name, setting in held.items()} == {"backbone": "mini-bert", "data_dir": None}
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
        ("backbone = 3", r"`\$\.backbone`"),
        ("backbone = nan", "not finite"),
        ("backbone = " + 2000 * "[" + 2000 * "]", "nested deeper"),
        ("backbone = " + 5000 * "1", "not TOML"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, text, message):
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_settings({"PROMPTCLI_HOME": str(tmp_path)})


def test_config_show_says_what_holds_and_why(run, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_DATA_DIR", "/data")
    ran = run("config")
    assert "backbone = mini-bert  (built in;" in ran.out
    assert "data_dir = /data  ($PROMPTCLI_DATA_DIR;" in ran.out
    shown = run("config", "--json").json
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
        (("backbone", " "), "not a value"),
    ],
)
def test_what_config_cannot_set_is_one_line_and_changes_nothing(run, home, arguments, said):
    refused(run("config", *arguments), 2, said)
    assert not (home / "config.toml").exists()


def test_a_backbone_of_the_environment_holds_and_overrules_the_file(run, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_BACKBONE", "no/where")
    assert "$PROMPTCLI_BACKBONE = no/where" in run("config", "backbone", "x").err
    ran = run("similarity", "a", "b", "--offline")
    assert ran.code == 3 and "no/where" in ran.err


def test_another_default_backbone_holds_if_none_is_named(home, tiny_folder):
    environ = {"PROMPTCLI_HOME": str(home), "PROMPTCLI_BACKBONE": str(tiny_folder("bert"))}
    backbone = read_settings(environ)["backbone"].value

    def of(**choice):
        return resolve(Registry(home), Choice(**choice, backbone=backbone)).recipe.backbone

    assert of() == of(model="static-avg") == backbone
    assert of(model="mini") == "mini-bert"  # an entry keeps its backbone
    assert of(changes={"backbone": "mini-bert"}) == "mini-bert"


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


def test_paper_is_the_setting_of_the_papers(run):
    assert (BARE.backbone, PAPER.backbone) == ("mini-bert", "bert-base-uncased")
    ran = run("eval", "cls", "--paper", "--offline")
    assert ran.code == 3 and ("bert-base-uncased" in ran.err or "STS12" in ran.err)


@pytest.mark.parametrize("folder", ["~nobody-of-this-name/models", "/dev/null/models", "/proc/models"])
def test_a_home_that_cannot_be_is_one_line(folder, run, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_HOME", folder)
    ran = run("models", "alias", "a", "mini")
    assert ran.code in (1, 2) and "Traceback" not in ran.err and ran.err.count("\n") == 1


def test_a_user_without_a_home_is_told_to_name_one(run, monkeypatch):
    def nobody(number):
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("PROMPTCLI_HOME", "HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for words in (["models", "alias", "a", "mini"], ["config", "backbone", "mini-bert"]):
        refused(run(*words), 2, "PROMPTCLI_HOME")
    assert run("models", "list", "--recipes").code == 0


def test_an_unknown_user_in_a_path_is_one_line(run):
    assert run("config", "data_dir", "~nobody-of-this-name/senteval").code == 0
    ran = run("eval", "--task", "STS12", "-m", "static-avg")
    assert ran.code in (2, 3) and ran.err.count("\n") == 1 and "~nobody-of-this-name" in ran.err
