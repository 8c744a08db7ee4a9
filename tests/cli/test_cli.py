"""The entrance: help, version, exit codes, one-line errors, nothing heavy before it is needed."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import promptcli
from promptcli.cli import console
from promptcli.cli.app import command, main
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
        (["--backbone", "nobody/nothing", "--offline"], "not in the local cache and --offline"),
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
def test_help_fits_80_columns_and_cuts_nothing(path, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran = run(*path, "--help")
    assert ran.code == 0 and max(map(len, ran.out.splitlines())) <= 80 and "…" not in ran.out
    options = [
        option for option in EVERY_COMMAND[path].params if option.param_type_name == "option" and not option.hidden
    ]
    names = [name for option in options for name in (*option.opts, *option.secondary_opts)]
    said = {"--method"} if path == ("optiprompt",) else set()
    assert all(name in ran.out for name in names if name not in said)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["embd", "x"], "unknown command 'embd'; valid: .*embed, .*; did you mean embed\\?$"),
        (["models", "shw"], "unknown command 'shw'; valid: list, .*; did you mean show\\?$"),
        (["embed", "x", "--backbon", "y"], "embed has no option --backbon; .* --help; did you mean --backbone\\?$"),
        (["embed", "x", "--threads", "0"], "--threads 0 is not allowed: .* 1; all options: promptcli embed --help$"),
        (["embed", "x", "--threads=a"], "--threads a is not allowed: .*integer.*; all options: promptcli embed"),
        (["embed", "x", "--threads"], "'--threads' requires an argument; all options: promptcli embed --help$"),
        (["similarity", "a"], "B is missing: .*; type: promptcli similarity A B; all options: "),
        (["serve-not"], r"unknown command"),
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
    assert ran.err.endswith("a .json or .toml file that is there\n")


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


def test_tables_reach_an_ascii_terminal(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("lions.txt").write_text("ein Löwe\na cat\n")
    Path("pairs.tsv").write_text("sentence1\tsentence2\tscore\na\tb\t1\nc\tb d\t2\ne a\tf\t3\nb\ta c\t4\n")
    backbone = f"--backbone {tiny_folder('bert')} --offline -q"
    for line, shown in (
        (f"index build lions.txt -o index {backbone}", b"index"),
        ("index search index Löwe --offline -q", rb"ein L\u00f6we"),
        (f"ditto-search --on pairs.tsv {backbone}", b"+- half of the"),
    ):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        sys.stdout.flush()
        assert not ended.value.code and shown in sys.stdout.buffer.getvalue(), line


# --- streams and signals, in processes of their own ---


@pytest.mark.parametrize("arguments", [["templates"], ["eval", "--task", "demo:dev", "-m", "static-avg", "-q"]])
def test_an_ascii_terminal_is_written_to_in_ascii(arguments):
    out, err = Program(*arguments, environment={"PYTHONIOENCODING": "ascii"}).communicate()
    assert out and max(out) < 128 and err == b""
    assert b"+-" in out or arguments[0] != "eval"


def test_json_is_whole_in_ascii(run):
    out, _ = Program("templates", "--json", environment={"PYTHONIOENCODING": "ascii"}).communicate()
    assert json.loads(out) == json.loads(run("templates", "--json").out)


def test_signs_are_spelled_and_others_numbered():
    spelled = console._spell(UnicodeEncodeError("ascii", "a±é😀\udc80", 1, 5, "no"))
    assert spelled == ("+-\\u00e9\\ud83d\\ude00\\udc80", 5)


def closed(*descriptors):
    return {"preexec_fn": lambda: [os.close(number) for number in descriptors]}


@pytest.mark.parametrize(
    ("arguments", "descriptors", "code", "message"),
    [
        (["templates"], [1], 1, b"promptcli: stdout is closed, so the result could not be written; nothing half"),
        (["templates"], [2], 0, b""),
        (["nosuch"], [2], 2, b""),
        (["nosuch"], [1], 2, b"promptcli: unknown command 'nosuch'"),
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


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["promptcli.cli.app", "typer", "rich.console", "torch", "tokenizers", "numpy"])
def test_a_signal_while_modules_are_loaded_is_one_line(sent, module, tmp_path):
    program = (
        "import importlib.abc, os, sys\n"
        "class Sender(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), {int(sent)})\n"
        "sys.meta_path.insert(0, Sender())\n"
        "from promptcli.__main__ import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", program, "similarity", "one", "two"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (128 + sent, "")
    assert ran.stderr == "promptcli: interrupted; nothing half written is left\n"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("sender", "ended"),
    [
        # while Python answers: what was registered last is called first
        ("import promptcli.cli.app as app, atexit; run = app.main; "
         "app.main = lambda: (atexit.register(send), run())", "promptcli: interrupted; nothing half written is left\n"),
        # when it no longer would: the work is done, and its own code holds
        ("class Sender:\n    def __del__(self): send()\nsys.kept = Sender()", ""),
    ],
    ids=["at exit", "while modules go"],
)  # fmt: skip
def test_a_signal_after_the_work(sent, sender, ended):
    program = (
        f"import os, sys\nsend = lambda kill=os.kill, me=os.getpid(): kill(me, {int(sent)})\n{sender}\n"
        "from promptcli.__main__ import main\nmain()\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, "templates"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (128 + sent if ended else 0, ended)


@pytest.mark.parametrize("made", [UsageError("the library says otherwise"), RuntimeError("release unlocked lock")])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_a_library_makes_another_error_of_stays_a_signal(sent, made, run, monkeypatch):
    def interrupted(*_, **__):
        try:
            os.kill(os.getpid(), sent)
        finally:
            raise made

    monkeypatch.setattr("promptcli.models.loading.open_registry", interrupted)
    ran = run("similarity", "one", "two")
    assert (ran.code, ran.out) == (128 + sent, "")
    assert ran.err == "promptcli: interrupted; nothing half written is left\n"
    assert run("templates").code == 0


def stopped_in_a_weak_reference():
    """Ask for a stop where the interpreter swallows every exception, then go on until something ends it."""
    import weakref

    from promptcli.cli import app
    from promptcli.models import loading as encoders

    def interrupted(*_, **__):
        kept = frozenset([1])
        reference = weakref.ref(kept, lambda _: os.kill(os.getpid(), int(sys.argv.pop())))
        del kept
        assert reference() is None
        Path("swallowed").touch()
        return threading.Event().wait()

    encoders.open_registry = interrupted
    app.main(["similarity", "one", "two"])


def stopped_while_it_cleans_up():
    """Ask for a stop, and clean up for longer than a stop is waited for."""
    from promptcli.cli import app
    from promptcli.models import loading as encoders

    def interrupted(*_, **__):
        try:
            os.kill(os.getpid(), int(sys.argv.pop()))
        finally:
            for part in range(10):
                time.sleep(0.05)
                Path(f"cleaned {part}").touch()

    encoders.open_registry = interrupted
    app.main(["similarity", "one", "two"])


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("main", "left"),
    [(stopped_in_a_weak_reference, ["swallowed"]), (stopped_while_it_cleans_up, [f"cleaned {i}" for i in range(10)])],
)
def test_a_stop_ends_the_program_and_not_what_it_cleans_up(main, left, sent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    running = Program(int(sent), main=main)
    assert running.communicate() == (b"", b"promptcli: interrupted; nothing half written is left\n")
    assert running.returncode == 128 + sent
    assert sorted(path.name for path in tmp_path.iterdir()) == left


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("transfer --fast", "eval --task transfer"),
        ("config set backbone x", "config KEY VALUE"),
        ("recipes", "--recipes"),
        ("index pairs x", "index dups --pairs K"),
        ("embed x --recipe cls", "--recipe is now --model"),
        ("similarity a b --denoise hidden", "--denoise is now --set denoise=VALUE"),
    ],
)
def test_a_former_spelling_names_the_new_one(run, former, now):
    ran = run(*former.split())
    assert (ran.code, ran.out) == (2, "") and now in ran.err and ran.err.count("\n") == 1
