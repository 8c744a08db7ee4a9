"""Options from the environment: their names, what goes before them, and that they are said."""

import json
from collections import Counter

import pytest

from promptcli.cli.command_line import command
from promptcli.settings import KEYS
from tests.embed_running import refused


def variables():
    """Every option -> its variable."""
    found = []
    for path, each in command().walk():
        for parameter in each.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                found.append((" ".join(path), parameter.opts, parameter.envvar))
    return found


def failed(ran, code, part):
    """A note on the variable, then the line of the error."""
    said, error = ran.err.splitlines()
    return ran.code == code and "is set by the environment" in said and part in error


def test_every_option_has_a_variable_of_its_own():
    found = variables()
    assert len(found) > 200
    assert all(variable for *_, variable in found)
    count = Counter(variable for *_, variable in found)
    assert count.most_common(1)[0][1] == 1
    others = {"PROMPTCLI_HOME", "PROMPTCLI_API_KEY", *(key["variable"] for key in KEYS.values())}
    assert not others & count.keys()
    names = {(path, opts[0]): variable for path, opts, variable in found}
    assert names["index build", "--memory"] == "PROMPTCLI_INDEX_BUILD_MEMORY"
    assert names["eval", "--task"] == "PROMPTCLI_EVAL_TASK"
    assert names["search-templates", "--seed"] == "PROMPTCLI_SEARCH_TEMPLATES_SEED"


def test_a_wrong_value_of_a_variable_is_said_to_be_its(run, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_SEARCH_K", "ten")
    said = "-k is 'ten', set by the environment, PROMPTCLI_SEARCH_K; give a whole number of 1"
    assert said in refused(run("search", "a", "b.txt"), 2)
    assert "PROMPTCLI" not in refused(run("search", "a", "b.txt", "-k", 0), 2, "-k is 0")
    monkeypatch.setenv("PROMPTCLI_SEARCH_JSON", "maybe")
    assert "give true or false" in refused(run("search", "a", "b.txt", "-k", 1), 2)


def test_a_variable_sets_an_option_and_is_said(run, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_MODELS_LIST_JSON", "1")
    listed = run("models", "list")
    assert listed.code == 0 and json.loads(listed.out.splitlines()[0])
    assert "--json is set by the environment, PROMPTCLI_MODELS_LIST_JSON" in listed.err
    monkeypatch.setenv("PROMPTCLI_QUIET", "1")
    assert run("models", "list").err == ""


def test_the_command_line_goes_before_the_environment_and_that_before_the_defaults(
    run, monkeypatch, tiny_folder
):
    words = ("templates", "manual", "--json")
    assert run("config", "backbone", "/no/such/default").code == 0
    assert refused(run(*words), 3, "/no/such/default")
    monkeypatch.setenv("PROMPTCLI_TEMPLATES_BACKBONE", "/no/such/variable")
    assert failed(run(*words), 3, "/no/such/variable")
    shown = run(*words, "--backbone", tiny_folder("bert"))
    assert shown.code == 0, shown.err
    assert "environment" not in shown.err


def test_an_option_of_the_program_is_read_for_every_command(run, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_DEVICE", "nowhere")
    words = ("similarity", "a", "b")
    assert failed(run(*words), 2, "'nowhere'")
    for given in (("--device", "cpu", *words), (*words, "--device", "cpu")):
        ran = run(*given)
        assert ran.code == 0 and "environment" not in ran.err, ran.err


def test_several_values_are_separated_by_spaces(run, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_EVAL_TASK", "demo nothing-like-it")
    assert failed(run("eval", "mini-static"), 2, "unknown task 'nothing-like-it'")


@pytest.mark.parametrize("value", ["many", "0"])
def test_a_value_that_is_not_allowed_names_the_variable(run, monkeypatch, value):
    monkeypatch.setenv("PROMPTCLI_EMBED_SHARDS", value)
    assert "PROMPTCLI_EMBED_SHARDS" not in run("embed", "--help").out
    assert refused(run("embed", "x.txt"), 2, "--shards", "PROMPTCLI_EMBED_SHARDS")


def test_an_empty_variable_counts_as_none(run, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_MODELS_LIST_JSON", "")
    assert "environment" not in run("models", "list").err


def test_a_variable_goes_before_a_file_of_options(run, monkeypatch, tmp_path):
    (tmp_path / "run.toml").write_text("seed = 7\nsteps = 3\n")
    monkeypatch.setenv("PROMPTCLI_TRAIN_SEED", "8")
    words = ("train", "simcse", "--config", tmp_path / "run.toml", "--dry-run", "--format", "toml")
    planned = run(*words)
    assert planned.code == 0, planned.err
    assert "seed = 8" in planned.out and "steps = 3" in planned.out
    assert "seed = 9" in run(*words, "--seed", 9).out
