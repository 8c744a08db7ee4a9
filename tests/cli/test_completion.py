"""Completion, as the shells ask for it."""

import os
import shutil
import subprocess
import sys

import pytest

from promptcli.cli import completing
from promptcli.cli.command_line import command, main
from promptcli.models.registry import Entry, Registry
from promptcli.recipe import RECIPES, Recipe
from promptcli.training.methods import METHODS


@pytest.fixture
def completed(monkeypatch, capsys):
    """A function from a beginning of a command line to what zsh is offered."""

    def complete(line):
        monkeypatch.setenv("_PROMPTCLI_COMPLETE", "complete_bash")
        words = line.split()
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - (not line.endswith(" "))))
        with pytest.raises(SystemExit) as ended:
            command().main(prog_name="promptcli")
        assert ended.value.code == 0
        return capsys.readouterr().out.split()

    return complete


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("promptcli ind", ["index"]),
        ("promptcli index se", ["search"]),
        ("promptcli train sim", ["simcse"]),
        ("promptcli train ", [*METHODS]),
        ("promptcli eval mini-s", ["mini-static"]),
        ("promptcli eval whit", [name for name in RECIPES if name.startswith("whit")]),
        ("promptcli eval mini --task STS1", ["STS12", "STS13", "STS14", "STS15", "STS16"]),
        ("promptcli embed --prompt manual-r", ["manual-roberta", "manual-roberta-the"]),
        ("promptcli templates also", ["also-called"]),
        ("promptcli models show mini-", ["mini-static", "mini-multi"]),
        ("promptcli embed --mod", ["--model"]),
        ("promptcli export mini-st", ["mini-static"]),
    ],
)
def test_names_are_completed(completed, line, names):
    assert completed(line) == names


def test_saved_models_are_offered(completed, home, tiny_folder):
    Registry(home).save(Entry("minutes", Recipe(backbone=str(tiny_folder("bert")))))
    assert completed("promptcli models remove minu") == ["minutes"]
    assert completed("promptcli embed FILE -m minu") == ["minutes"]


def test_a_folder_that_may_not_be_read_offers_nothing(completed, monkeypatch):
    def names(self):
        raise PermissionError

    monkeypatch.setattr(Registry, "names", names)
    assert completed("promptcli models show mi") == []


def test_every_row_of_the_table_is_a_parameter():
    known = set()
    for _, each in command().walk():
        for parameter in each.params:
            known |= {parameter.name, f"{each.name} {parameter.name}"}
    assert completing.NAMES.keys() <= known


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_zsh_and_fish_are_answered(shell, monkeypatch, capsys):
    monkeypatch.setenv("_PROMPTCLI_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "promptcli train sim")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    with pytest.raises(SystemExit):
        command().main(prog_name="promptcli")
    assert "simcse" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("shell", "typed", "answer"),
    [
        ("fish", "--task=STS-B:d", "--task=STS-B:dev\n"),
        ("fish", "--task STS-B:d", "STS-B:dev\n"),
        ("zsh", "--task=STS16", "compset -P '*=';\n_arguments '*: :((\"STS16\"))'\n"),
        ("zsh", "--task STS16", "_arguments '*: :((\"STS16\"))'\n"),
    ],
)
def test_a_value_behind_an_equals_sign_stays_with_its_option(
    shell, typed, answer, monkeypatch, capsys
):
    monkeypatch.setenv("_PROMPTCLI_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"promptcli eval mini {typed}")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setattr(sys, "argv", ["promptcli"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out == answer


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_itself_completes_a_value_behind_an_equals_sign(tmp_path):
    _program(tmp_path)
    script = """
        _PROMPTCLI_COMPLETE=source_fish promptcli | source
        complete -C "promptcli eval mini --task=STS-B:d"
    """
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    environment = {**os.environ, **path, "HOME": str(tmp_path)}
    ran = subprocess.run(
        ["fish", "-N", "-c", script], env=environment, capture_output=True, text=True
    )
    assert ran.stdout == "--task=STS-B:dev\n"


def _program(folder):
    """Write the program ``promptcli`` of this Python into a folder."""
    program = folder / "promptcli"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m promptcli "$@"\n')
    program.chmod(0o755)


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_itself_completes(tmp_path):
    _program(tmp_path)
    script = """
        eval "$(_PROMPTCLI_COMPLETE=source_bash promptcli)"
        COMP_WORDS=(promptcli train sim); COMP_CWORD=2
        $(complete -p promptcli | sed 's/.*-F //; s/ .*//') promptcli
        echo "${COMPREPLY[@]}"
    """
    path = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    ran = subprocess.run(
        ["bash", "-c", script], env={**os.environ, **path}, capture_output=True, text=True
    )
    assert (ran.stdout, ran.stderr) == ("simcse\n", "")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--task", "STS-B", ":", "d"], ["dev"]),  # as bash breaks STS-B:d
        (["--task", "STS-B", ":"], ["dev", "train", "all"]),
        (["--task", "STS-B:d"], ["STS-B:dev"]),  # as bash with COMP_WORDBREAKS without a colon
        (["--task", "demo", "--on", "STS-B", ":", "t"], []),  # eval has no --on
        (["--task", "=", "STS15"], ["STS15"]),
        (["--task", "=", "STS-B", ":", "d"], ["dev"]),
        (["--task", "=", "STS-B", ":"], ["dev", "train", "all"]),
        (["--task", "=", "STS-B:d"], ["STS-B:dev"]),  # COMP_WORDBREAKS without a colon
        (["--task=STS-B:d"], ["STS-B:dev"]),  # nor an equals sign
    ],
)
def test_bash_is_answered_after_a_break(words, names, monkeypatch, capsys):
    monkeypatch.setenv("_PROMPTCLI_COMPLETE", "complete_bash")
    line = ["promptcli", "eval", "mini", *words]
    monkeypatch.setenv("COMP_WORDS", " ".join(line))
    monkeypatch.setenv("COMP_CWORD", str(len(line) - 1))
    monkeypatch.setattr(sys, "argv", ["promptcli"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.split() == names
