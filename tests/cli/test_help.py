"""Help pages: the order of commands, the usual options first, and every option in full."""

import re

import pytest

from promptcli.cli.command_line import COMMANDS, Command, command
from promptcli.cli.usage_lines import spelling


def options(command):
    return {spelling(each) for each in command.params if each.param_type_name == "option"}


def commands():
    return [(path, each) for path, each in command().walk() if isinstance(each, Command)]


def test_the_commands_of_a_user_come_before_those_of_research(run):
    page = run("--help").out
    first = "search index embed similarity eval train examples".split()
    research = "search-templates ditto-search optiprompt".split()
    plugins = [*set(COMMANDS) - set(COMMANDS.own)]  # which stand last, in a part of their own
    places = [page.index(f"│ {name} ") for name in [*first, *research]]
    assert all(max(places) < page.index(f"│ {name} ") for name in plugins)
    assert places == sorted(places)
    assert places[len(first) - 1] < page.index("Research") < places[len(first)]


@pytest.mark.parametrize("name", ["embed", "eval", "train", "index build", "index sync"])
def test_a_page_has_the_usual_options_in_order_and_names_the_others(run, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    called = dict(commands())[tuple(name.split())]
    page = run(*name.split(), "--help").out
    described = re.findall(r"^│ [* ]*(--[a-z-]+)", page, re.MULTILINE)
    own = [option for option in described if option.removeprefix("--") in called.usual]
    in_panel = [option for option in own if option != "--model"]
    wanted = [f"--{each}" for each in called.usual if f"--{each}" in in_panel]
    assert set(own) == {f"--{each}" for each in called.usual} and len(own) <= 11
    assert sorted(in_panel) == sorted(wanted) and len(page.splitlines()) < 80
    named, _, pointer = page.partition("More options")[2].partition(f"{name} --help-all")
    hidden = {
        spelling(each) for each in called.params if each.param_type_name == "option" and each.hidden
    }
    assert {*described, *re.findall(r"--[a-z-]+", named)} >= options(called) - hidden
    assert pointer


def test_every_option_is_described_by_help_all(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for path, called in commands():
        page = run(*path, "--help-all").out
        shown = {spelling(each) for each in called.params if not each.hidden}
        shown = {option for option in shown if option.startswith("--")}
        assert {option for option in shown if option not in page} == set(), path
        assert {each for each in called.usual if f"--{each}" not in shown} == set(), path
    assert "prefix-length" in run("train", "dcpcse", "--help-all").out
