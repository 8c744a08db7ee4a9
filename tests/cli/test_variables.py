"""Options from the environment: ``PROMPTCLI_INDEX_BUILD_ROWS`` is ``index build --rows``."""

import json

import pytest

from tests.comparing import refused


def test_a_variable_sets_an_option(run, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_MODELS_LIST_JSON", "1")
    assert json.loads(run("models", "list").out.splitlines()[0])
    monkeypatch.setenv("PROMPTCLI_MODELS_LIST_JSON", "")
    assert not run("models", "list").out.startswith(("[", "{"))


def test_what_is_typed_goes_before_the_environment_and_that_before_the_defaults(
    run, monkeypatch, bert_folder
):
    words = ("templates", "manual", "--json")
    assert run("config", "backbone", "/no/such/default").code == 0
    assert "/no/such/default" in run(*words).err
    monkeypatch.setenv("PROMPTCLI_TEMPLATES_BACKBONE", "/no/such/variable")
    assert "/no/such/variable" in run(*words).err
    assert run(*words, "--backbone", bert_folder).code == 0


def test_an_option_of_the_program_is_read_for_every_command(run, monkeypatch):
    monkeypatch.setenv("PROMPTCLI_DEVICE", "nowhere")
    words = ("similarity", "a", "b")
    assert refused(run(*words), 2, "'nowhere'")
    for given in (("--device", "cpu", *words), (*words, "--device", "cpu")):
        assert run(*given).code == 0


@pytest.mark.parametrize("value", ["many", "0"])
def test_a_value_that_is_not_allowed_is_refused(run, monkeypatch, value):
    monkeypatch.setenv("PROMPTCLI_EMBED_SHARDS", value)
    assert refused(run("embed", "x.txt"), 2, "--shards")
    assert "PROMPTCLI_EMBED_SHARDS" not in run("embed", "--help").out


@pytest.mark.parametrize("value", ["0.1.0", "1"])
def test_the_version_is_no_option_of_the_environment(run, monkeypatch, value):
    monkeypatch.setenv("PROMPTCLI_VERSION", value)
    assert "usage" in run("--help").out.lower()
    assert run("config").code == 0
