"""The entrance: help, version, exit codes, one-line errors, nothing heavy before it is needed."""

import re
import subprocess
import sys

import pytest

import promptcli
from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError

COMMANDS = ["embed", "similarity", "eval", "index", "fit", "models", "recipes", "templates"]


def test_help_names_every_command(run):
    ran = run("--help")
    assert ran.code == 0
    assert all(re.search(rf"\b{command}\b", ran.out) for command in COMMANDS)


@pytest.mark.parametrize("command", [*COMMANDS, "index build", "index search", "models alias"])
def test_every_command_has_help(command, run):
    ran = run(*command.split(), "-h")
    assert ran.code == 0 and "Usage:" in ran.out


def test_version(run):
    assert run("--version").out.strip() == promptcli.__version__


def test_no_arguments_show_help(run):
    ran = run()
    assert ran.code == 2 and "Usage:" in ran.out + ran.err


@pytest.mark.parametrize(
    "arguments", [("nosuch",), ("embed",), ("embed", "x", "--nosuch"), ("embed", "x", "--threads", "0")]
)
def test_usage_errors_exit_with_2(arguments, run):
    ran = run(*arguments)
    assert ran.code == 2 and ran.out == "" and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("error", "code"), [(PromptcliError, 1), (UsageError, 2), (NotFoundError, 3), (CheckFailedError, 4)]
)
def test_every_error_is_one_line_and_its_exit_code(error, code, run, monkeypatch):
    def fail(*_, **__):
        raise error("what was given\nand what is allowed")

    monkeypatch.setattr("promptcli.cli.opening.open_registry", fail)
    ran = run("similarity", "one", "two")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err == "promptcli: what was given and what is allowed\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--recipe", "nosuch"], "unknown recipe 'nosuch'; valid: static-avg, last-avg"),
        (["--recipe", '{"poling": 1}'], "unknown recipe key 'poling'; valid: backbone"),
        (["--pooling", "last/ditto:9-9"], "head '9-9' is not there"),
        (["--template", "no slot"], r"template 'no slot' has 0 times \[X\]"),
        (["--template", "[X]", "--pooling", "last/mask"], r"has no \[MASK\]"),
        (["--template", "[X] [MASK] [MASK]"], r"2 times \[MASK\]"),
        (["--backbone", "./nowhere"], "no backbone folder './nowhere'"),
        (["--backbone", "nobody/nothing", "--offline"], "not in the local cache and --offline"),
        (["--device", "abacus"], "unknown device 'abacus'; valid: auto"),
        (["--dtype", "float8"], "unknown dtype 'float8'; valid: auto, float32, bfloat16"),
        (["--max-length", "9999"], "takes 1 to 512"),
        (["--model", "nosuch"], "no model 'nosuch'"),
        (["--model", "mini", "--recipe", "cls"], "exclude each other"),
    ],
)
def test_a_wrong_choice_is_one_line(arguments, message, run):
    ran = run("similarity", "one", "two", *arguments)
    assert ran.code in (2, 3) and ran.out == ""
    assert re.search(message, ran.err), ran.err
    assert ran.err.count("\n") == 1 and ran.err.startswith("promptcli: ")


def test_python_dash_m_runs_it():
    ran = subprocess.run([sys.executable, "-m", "promptcli", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == promptcli.__version__


def test_templates_lists_the_named_ones(run):
    ran = run("templates", "list", "--json")
    assert ran.code == 0 and '"manual"' in ran.out and '\\"[X]\\" means [MASK] .' in ran.out
    assert "manual" in run("templates", "list").out
