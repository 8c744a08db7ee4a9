"""The entrance: help, version, exit codes, one-line errors, nothing heavy before it is needed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import promptcli
from promptcli.cli import console
from promptcli.cli.app import command
from promptcli.errors import LONGEST_MESSAGE, CheckFailedError, NotFoundError, PromptcliError, UsageError
from tests.processes import Program

COMMANDS = ["embed", "similarity", "eval", "index", "fit", "models", "reproduce", "templates"]


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

    monkeypatch.setattr("promptcli.models.loading.open_registry", fail)
    ran = run("similarity", "one", "two")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err == "promptcli: what was given and what is allowed\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nosuch.toml"], "unknown recipe 'nosuch.toml'; valid: static-avg, last-avg"),
        (["--model", '{"poling": 1}'], "unknown recipe key 'poling'; valid: backbone"),
        (["--pooling", "last/ditto:9-9"], "head '9-9' does not exist"),
        (["--prompt", "no slot"], r"template 'no slot' has no \[X\]"),
        (["--prompt", "[X]", "--pooling", "last/mask"], r"has no \[MASK\]"),
        (["--backbone", "./nowhere"], "no backbone folder './nowhere'"),
        (["--backbone", "nobody/nothing", "--offline"], "not in the local cache and `offline`"),
        (["--device", "abacus"], "unknown device 'abacus'; valid: auto"),
        (["--device", "cuda:7"], r"device 'cuda:7' is not available: this machine has .*; give"),
        (["--dtype", "float8"], "unknown dtype 'float8'; valid: auto, float32, bfloat16, float16"),
        (["--set", "max-length=9999"], "takes 1 to 512"),
        (["--model", "nosuch", "--offline"], "nothing is called 'nosuch'.*there are: mini, "),
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
    ran = run("templates", "--json")
    assert ran.code == 0 and '"manual"' in ran.out and '\\"[X]\\" means [MASK] .' in ran.out
    assert "manual" in run("templates").out


EVERY_COMMAND = {(): command(), **dict(command().every())}


@pytest.mark.parametrize("path", EVERY_COMMAND, ids=" ".join)
def test_help_names_every_option_and_cuts_nothing(path, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran = run(*path, "--help")
    assert ran.code == 0 and max(map(len, ran.out.splitlines())) <= 80 and "…" not in ran.out
    options = [option for option in EVERY_COMMAND[path].params if option.param_type_name == "option"]
    names = [name for option in options for name in (*option.opts, *option.secondary_opts)]
    assert all(name in ran.out for name in names)
    assert all(option.help for option in options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embd", "x"], "no such command 'embd'. Did you mean 'embed'"),
        (["models", "shw"], "no such command 'shw'. Did you mean 'show'"),
        (["embed", "x", "--backbon", "y"], "no such option: --backbon .*--backbone.*promptcli embed --help"),
        (["embed", "x", "--threads", "0"], "'--threads': .* 1 .*promptcli embed --help"),
        (["embed", "x", "--threads=a"], "'--threads': .*integer.*promptcli embed"),
        (["embed", "x", "--threads"], "'--threads' requires an argument"),
        (["similarity", "a"], "missing argument 'B'.*promptcli similarity --help"),
        (["serve-not"], r"no such command"),
        (
            ["similarity", "a", "b", "--model", "sttic-avg", "--offline"],
            "nothing is called 'sttic-avg'.*mean static-avg",
        ),
        (["similarity", "a", "b", "--pooling", "last/averge"], "unknown weights .*did you mean avg"),
        (["similarity", "a", "b", "--transform", "whitning"], "unknown transform 'whitning'.*did you mean whitening"),
        (["similarity", "a", "b", "--prompt", "manul"], "unknown template 'manul'.*did you mean manual"),
        (["eval", "--task", "STSB"], "unknown task 'STSB'.*did you mean STS-B"),
        (["similarity", "a", "b", "--model", "minni", "--offline"], "nothing is called 'minni'.*did you mean mini"),
        (["train", "--method", "dcpse"], "unknown method 'dcpse'.*did you mean dcpcse"),
    ],
)
def test_a_wrong_command_line_is_one_line_with_the_nearest_name(arguments, message, run):
    ran = run(*arguments)
    assert ran.code == (3 if "nothing is called" in message else 2) and ran.out == "" and ran.err.count("\n") == 1
    assert re.search(message, ran.err), ran.err


@settings(deadline=None)
@given(st.text(max_size=2000))
def test_a_message_is_one_line_of_at_most_400_characters(text):
    with console.err.capture() as captured:
        console.note(text)
    line = captured.get()
    assert len(line.rstrip("\n")) <= LONGEST_MESSAGE and line.count("\n") == 1


def test_a_long_message_keeps_what_to_type_next(run):
    ran = run("similarity", "one", "two", "--model", f"{'x' * 5000}.json")
    assert len(ran.err) <= 401 and "unknown recipe 'xxx" in ran.err and " … " in ran.err
    assert ran.err.endswith(".json or .toml file\n")


def test_a_header_of_10_000_columns_is_not_said_whole(run, tmp_path):
    (tmp_path / "wide.csv").write_text(",".join(f"column{number}" for number in range(10_000)) + "\n")
    ran = run("embed", tmp_path / "wide.csv", "--text-field", "nothing")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1) and len(ran.err) <= LONGEST_MESSAGE + 1


def test_half_a_surrogate_pair_in_a_template_is_refused_where_it_is_read(run, tmp_path):
    (tmp_path / "recipe.json").write_text('{"prompt": "[X] \\ud800 [MASK]"}')
    (tmp_path / "some.toml").write_text('[a]\ntext = "[X] \\ud800 [MASK]"\n')
    for words in (
        ("similarity", "a", "b", "--prompt", "[X] \udce9 [MASK]"),
        ("similarity", "a", "b", "--model", tmp_path / "recipe.json"),
        ("search-templates", "--candidates", tmp_path / "some.toml", "-o", tmp_path / "best.toml"),
    ):
        ran = run(*words, "--offline", "-q")
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran.err
        assert re.search("surrogate|UTF-8|TOML", ran.err), ran.err


# --- streams and signals, in processes of their own ---


def test_an_ascii_terminal_is_written_to_in_ascii(run):
    for arguments in (["eval", "--task", "demo:dev", "-m", "static-avg", "-q"], ["templates", "--json"]):
        out, err = Program(*arguments, environment={"PYTHONIOENCODING": "ascii"}).communicate()
        assert out and max(out) < 128 and err == b""
    assert json.loads(out) == json.loads(run("templates", "--json").out)


def closed(*descriptors):
    return {"preexec_fn": lambda: [os.close(number) for number in descriptors]}


@pytest.mark.parametrize(
    ("arguments", "descriptors", "code", "message"),
    [
        (["templates"], [1], 1, b"promptcli: stdout is closed, so the result could not be written; nothing half"),
        (["templates"], [2], 0, b""),
        (["nosuch"], [2], 2, b""),
        (["nosuch"], [1], 2, b"promptcli: no such command 'nosuch'"),
        (["templates"], [1, 2], 1, b""),
        (["templates"], [0, 1, 2], 1, b""),
    ],
)
def test_closed_streams(arguments, descriptors, code, message):
    command = [sys.executable, "-m", "promptcli", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = subprocess.Popen(command, **pipes, **closed(*descriptors))
    _, err = running.communicate()
    assert running.returncode == code and err.startswith(message) and err.count(b"\n") <= 1


@pytest.mark.parametrize(
    ("arguments", "full", "code", "message"),
    [
        (["templates"], "stdout", 1, b"promptcli: disk full: the output could not be written; nothing half"),
        (["nosuch"], "stderr", 2, b""),
        (["similarity", "one", "two", "--model", "nosuch.toml"], "stderr", 2, b""),
    ],
)
def test_full_streams(arguments, full, code, message):
    with open("/dev/full", "w") as device:
        running = Program(*arguments, **{full: device})
        _, err = running.communicate()
    assert running.returncode == code and (err or b"").startswith(message) and (err or b"").count(b"\n") <= 1


def waits_for_a_signal():
    """Run a command that is interrupted while it works."""
    from promptcli.cli import app
    from promptcli.models import loading

    def interrupted(*_, **__):
        try:
            os.kill(os.getpid(), int(sys.argv.pop()))
            time.sleep(60)
        finally:
            Path("cleaned up").touch()

    loading.open_registry = interrupted
    app.main(["similarity", "one", "two"])


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_unwinds_and_is_one_line(sent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    running = Program(int(sent), main=waits_for_a_signal)
    assert running.communicate() == (b"", b"promptcli: interrupted; nothing half written is left\n")
    assert running.returncode == 128 + sent and Path("cleaned up").exists()
