"""The entrance: help, version, exit codes, one-line errors, tables."""

import errno
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import promptcli
from promptcli.cli import console
from promptcli.cli.command_line import command
from promptcli.errors import (
    LONGEST_MESSAGE,
    CheckFailedError,
    NotFoundError,
    PromptcliError,
    UsageError,
)
from promptcli.settings import ANOTHER_HOME
from promptcli.threads import COMPUTING
from tests.comparing import refused
from tests.processes import Program, program

EVERY_COMMAND = {(): command(), **dict(command().walk())}


@pytest.mark.parametrize("path", EVERY_COMMAND, ids=" ".join)
def test_help_names_every_command_and_option_and_cuts_nothing(path, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran = run(*path, "-h")
    assert ran.code == 0 and max(map(len, ran.out.splitlines())) <= 80 and "…" not in ran.out
    params = EVERY_COMMAND[path].params
    options = [
        option for option in params if option.param_type_name == "option" and not option.hidden
    ]
    names = [name for option in options for name in (*option.opts, *option.secondary_opts)]
    assert all(name in ran.out for name in (*names, *getattr(EVERY_COMMAND[path], "commands", ())))
    assert all(option.help for option in options)


def test_no_arguments_show_help(run):
    ran = run()
    assert ran.code == 2 and "Usage:" in ran.out + ran.err


@pytest.mark.parametrize(
    ("error", "code"),
    [(PromptcliError, 1), (UsageError, 2), (NotFoundError, 3), (CheckFailedError, 4)],
)
def test_every_error_is_one_line_and_its_exit_code(error, code, run, monkeypatch):
    def fail(*_, **__):
        raise error("what was given\nand what is allowed")

    monkeypatch.setattr("promptcli.models.loading.open_registry", fail)
    ran = run("similarity", "one", "two")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err == "promptcli: what was given and what is allowed\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupt_of_which_a_library_makes_an_error_is_an_interrupt(
    number, code, run, monkeypatch
):
    def load(*_, **__):
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        except KeyboardInterrupt:
            raise UsageError("the shape of the tensor could not be determined") from None

    monkeypatch.setattr("promptcli.models.loading.open_registry", load)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    try:
        ran = run("similarity", "one", "two")
    finally:
        signal.signal(signal.SIGINT, before)
    assert ran.code == code and ran.err == "promptcli: interrupted; nothing was changed\n"


def test_a_process_ends_though_a_server_s_thread_still_computes(run, monkeypatch):
    ended = []

    def end(code):
        ended.append(code)
        raise SystemExit(code)

    monkeypatch.setattr("promptcli.cli.command_line.os._exit", end)
    go = threading.Event()
    computed = threading.Thread(target=go.wait, name=COMPUTING)
    computed.start()
    assert run("config", "nosuch.key").code == 2 and ended == [2]
    go.set()
    computed.join()
    assert run("config", "nosuch.key").code == 2 and ended == [2]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
@pytest.mark.parametrize(
    ("name", "remedy"), [("/elsewhere/x", "use another path"), ("x", ANOTHER_HOME)]
)
def test_what_may_not_be_written_is_named_with_what_to_give(
    name, remedy, number, run, monkeypatch, home
):
    def fail(*_, **__):
        raise OSError(number, os.strerror(number), os.path.join(home, name))

    monkeypatch.setattr("promptcli.models.loading.open_registry", fail)
    ran = run("similarity", "one", "two")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(
        f"promptcli: '{os.path.join(home, name)}' cannot be opened or written ("
    )
    assert ran.err.endswith(f"; {remedy}\n") and "Errno" not in ran.err


def test_an_interrupt_while_the_program_is_imported_is_one_line():
    code = """
import sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "promptcli.cli.command_line":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from promptcli.__main__ import main
main()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (130, "")
    assert ran.stderr == "promptcli: interrupted; nothing was changed\n"


def test_python_dash_m_runs_it_and_imports_nothing_from_the_current_folder(tmp_path):
    # python -m itself imports some of Python's own modules from there
    for name in ("typer", "rich", "msgspec"):
        (tmp_path / f"{name}.py").write_text(
            "raise SystemExit('imported from the current folder')\n"
        )
    command = [sys.executable, "-m", "promptcli", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(Path(promptcli.__file__).parents[1])}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == promptcli.__version__


#: A choice of a model that cannot be met.
CHOICES = [
    ("--model nosuch.toml", 2, "nosuch.toml cannot be read"),
    ('--model {"poling":1}', 2, "unknown key 'poling'"),
    ("--model minni", 3, "mean mini"),
    ("--pooling last/averge", 2, "mean avg"),
    ("--device abacus", 2, "unknown device 'abacus'"),
    ("--dtype float8", 2, "unknown dtype 'float8'"),
]


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        ("embd x", 2, "Did you mean 'embed'"),
        ("embed x --backbon y", 2, "--backbone"),
        ("embed x --threads 0", 2, "'--threads': '0' should be"),
        ("index search x y --format z", 2, "'--format': 'z' is not one of"),
        ("train simcse --learning-rate nan", 2, "--learning-rate"),
        ("similarity a", 2, "'B'"),
        ("index build x", 2, "--output"),
        ("search x y -k ten", 2, "-k"),
        ("adapt x --name y --hours 2000", 2, "--hours"),
        ("similarity a b --dim 64", 2, "by `promptcli train METHOD --set dims=64`"),
        ("similarity a b -m nosuch", 3, "models: mini, mini-static, "),
        ("similarity a b -m whitning", 3, "did you mean whitening?"),
        ("similarity --modle x", 2, "promptcli similarity --help"),
        ("eval --task STSB", 2, "mean STS-B"),
        *(
            (f"similarity one two --offline {words}", code, message)
            for words, code, message in CHOICES
        ),
    ],
)
def test_a_wrong_command_line_is_one_line_with_the_nearest_name(line, code, message, run):
    refused(run(*line.split()), code, message)


@given(st.text(max_size=2000))
def test_a_message_is_one_line_of_at_most_400_characters(text):
    with console.err.capture() as captured:
        console.note(text)
    line = captured.get()
    assert len(line.rstrip("\n")) <= LONGEST_MESSAGE and line.count("\n") == 1


def test_an_option_within_a_message_is_spelled_as_it_is_typed():
    with console.err.capture() as captured:
        console.say(
            'force=True replaces it; give data_dir=FOLDER, engine="ray", without offline=True'
        )
    assert (
        captured.get()
        == "--force replaces it; give --data-dir FOLDER, --engine ray, without --offline\n"
    )


@pytest.mark.parametrize("offline", [[], ["--offline"]])
def test_a_download_is_said_only_if_it_is_tried(offline, run, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    by = "--offline" if offline else "HF_HUB_OFFLINE"
    error = refused(run("similarity", "a", "b", "-m", "nosuch", *offline), 3)
    assert f"no local model 'nosuch', and {by} forbids the network" in error
    assert "mini, mini-static" in error and "promptcli models list" in error
    assert "prompteol" not in error


def test_half_a_surrogate_pair_is_refused(run):
    refused(
        run("similarity", "a", "b", "--prompt", "[X] \udce9 [MASK]", "--offline", "-q"), 2, "UTF-8"
    )


def test_an_ascii_terminal_is_written_to_in_ascii(run):
    for arguments in (
        ["eval", "--task", "demo:dev", "-m", "static-avg", "-q"],
        ["templates", "--json"],
    ):
        out, err = Program(*arguments, environment={"PYTHONIOENCODING": "ascii"}).communicate()
        assert out and max(out) < 128 and err == b""
    assert json.loads(out) == run("templates", "--json").json


def test_a_reader_that_closes_an_unbuffered_pipe_is_told_by_the_exit_code(tmp_path):
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"Sentence {number}.\n" for number in range(500)))
    command = [
        sys.executable,
        "-m",
        "promptcli",
        "embed",
        str(file),
        "-m",
        "mini-static",
        "-o",
        "-",
    ]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    program = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert json.loads(program.stdout.readline())["text"] == "Sentence 0."
    program.stdout.close()  # most of a megabyte and a half is still to be written
    assert program.wait(300) == 1


@pytest.mark.parametrize(
    ("word", "full", "code", "message"),
    [("templates", "stdout", 1, b"promptcli: disk full"), ("nosuch", "stderr", 2, b"")],
)
def test_a_full_stream_ends_with_its_own_code(word, full, code, message):
    with open("/dev/full", "w") as device:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, full: device}
        running = subprocess.Popen([sys.executable, "-m", "promptcli", word], **pipes)
        err = running.communicate()[1] or b""
    assert running.returncode == code and err.startswith(message) and err.count(b"\n") <= 1


def test_a_table_is_as_wide_as_it_is_or_folded_to_a_terminal(monkeypatch, capsys):
    rows = [
        ("one", "1.00", "a text [of] several :smile: words", ""),
        ("two", "10.00", "short", "and another text"),
    ]
    console.print_table(("name", "value", "text", "more"), rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "one    1.00  a text [of] several :smile: words",
        "two   10.00  short                              and another text",
    ]
    monkeypatch.setattr(console, "out", Console(width=40, force_terminal=True))
    monkeypatch.setenv("COLUMNS", "40")
    console.print_table(("name", "value", "text", "more"), rows)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40


def test_progress_without_a_terminal_is_a_line_now_and_then(monkeypatch):
    monkeypatch.setattr(console, "_LINE_INTERVAL_S", 0.0)
    with console.err.capture() as captured, console.progress("train", 1000) as bar:
        bar(900)
        bar.describe("loss 0.5")
        bar(50)
    first, second = captured.get().splitlines()
    assert first.startswith("train: 900 of 1,000") and second.startswith(
        "train loss 0.5: 950 of 1,000"
    )


@pytest.mark.parametrize(
    ("speed", "shown"),
    [(None, "-/s"), (12345.6, "12,346/s"), (3.24, "3.2/s"), (0.0345, "0.035/s")],
)
def test_a_speed_is_readable_however_low(speed, shown):
    assert console.rate(speed) == shown


def test_options_of_a_recipe_without_a_model_are_said_to_leave_mini(run):
    changed = run("similarity", "a cat", "a dog", "--pooling", "last/avg")
    assert "using mini-bert, [X] last/avg, not the default model mini" in changed.err
    # it is mini, cut
    assert "not mini" not in run("similarity", "a cat", "a dog", "--set", "max-length=20").err
    assert (
        "not mini"
        not in run("similarity", "a cat", "a dog", "-m", "last-avg", "--pooling", "last/max").err
    )


def _signalled_once_done(number):
    try:
        program()
    finally:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_after_the_command_is_done_changes_nothing(number):
    process = Program(
        "similarity", "--nosuch", main=functools.partial(_signalled_once_done, number)
    )
    _, said = process.communicate()
    assert process.returncode == 2 and said.count(b"\n") == 1 and b"--nosuch" in said


#: Command with ``-o`` -> its other arguments; "index" is a small index.
OUTPUT_ARGUMENTS = {
    "index build": ["sentences.txt"],
    "index dups": ["index", "--keep", "first"],
    "embed": ["sentences.txt"],
    "eval": ["mini", "--task", "demo"],
    "export": ["mini", "--to", "sentence-transformers"],
    "judge": ["sentences.txt", "index"],
    "reproduce": ["ditto/figure-2"],
    "pretrain": ["sentences.txt", "--tokens", "1000"],
}


def test_no_output_replaces_an_existing_file_without_force(run, tmp_path, monkeypatch):
    commands = {" ".join(path): member for path, member in EVERY_COMMAND.items()}
    with_output = {
        name
        for name, member in commands.items()
        if any("-o" in option.opts for option in member.params)
    }
    assert with_output == set(OUTPUT_ARGUMENTS)
    monkeypatch.chdir(tmp_path)
    Path("sentences.txt").write_text("A cat.\nA dog.\nA cat.\n")
    assert run("index", "build", "sentences.txt", "-o", "index", "--model", "mini").code == 0
    precious = Path("precious.csv")
    for name, arguments in OUTPUT_ARGUMENTS.items():
        precious.write_text("precious")
        ran = run(*name.split(), *arguments, "-o", precious)
        assert ran.code == 2 and "precious" in ran.err, (name, ran)
        assert precious.read_text() == "precious", name
    ran = run("index", "dups", "index", "--keep", "first", "-o", precious, "--force")
    assert ran.code == 0 and precious.read_text() == "id,text\n0,A cat.\n1,A dog.\n", ran
    ran = run("index", "dups", "index", "--keep", "colour", "-o", "new.csv")
    assert ran.code == 2 and ran.out == "" and "colour" in ran.err  # before any group is printed
