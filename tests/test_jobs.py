"""A job is a function of the library and the options of a command, said once."""

import inspect
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner
from typer import Typer
from typer.main import get_command

from promptcli.cli.job_options import JobOptions
from promptcli.cli.typer_commands import typer_command
from promptcli.errors import UsageError
from promptcli.jobs import Job, argument, function_of, option


@dataclass(frozen=True)
class CountJob(Job[str]):
    """Count words.

    Raises:
        UsageError: The text is empty.
    """

    further = "settings"

    text: str = argument("What is counted, at least `least` words.", metavar="TEXT")
    least: int = option(1, "Fewest words.", min=1)
    _: KW_ONLY
    parts: tuple[str, ...] = option((), "Part; repeatable.", names="part p")
    folder: str | Path | None = option(None, "Folder.", typed=Path)
    settings: dict[str, int] = field(default_factory=dict, metadata={"help": "-", "hidden": True})

    def run(self) -> str:
        return repr((self.text, self.least, self.parts, self.folder, self.settings))


count = function_of(CountJob, "count")


def command(job: CountJob) -> None:
    print(job.run())


def typed(*words):
    app = Typer(add_completion=False)
    app.command()(typer_command(command))
    return CliRunner().invoke(get_command(app), words)


def test_the_function_takes_the_fields():
    assert count("a b") == repr(("a b", 1, (), None, {}))
    assert count("a", 2, parts=("x",), folder="f", tau=3) == repr(("a", 2, ("x",), "f", {"tau": 3}))
    assert list(inspect.signature(count).parameters) == [
        "text", "least", "parts", "folder", "settings"
    ]  # fmt: skip
    assert "least: Fewest words." in count.__doc__ and "Raises:" in count.__doc__
    assert count.__name__ == "count"


@pytest.mark.parametrize(
    ("options", "word"), [({"least": 0}, "least"), ({"least": "x"}, "whole number")]
)
def test_a_value_out_of_bounds_is_refused_in_the_library(options, word):
    with pytest.raises(UsageError, match=word):
        count("a", **options)


def test_the_command_takes_the_same(monkeypatch):
    assert typed("a b").output == repr(("a b", 1, (), None, {})) + "\n"
    output = typed("a", "--least", "2", "-p", "x", "--part", "y", "--folder", "f").output
    assert output == repr(("a", 2, ("x", "y"), Path("f"), {})) + "\n"
    assert typed("a", "--least", "0").exit_code == 2
    assert typed("a", "--settings", "x").exit_code == 2


def test_help_is_written_once():
    named = {one.name: one for one in JobOptions(CountJob).options()}
    assert "at least `--least` words" in named["text"].annotation.__metadata__[0].help


def test_an_unknown_keyword_is_refused_where_none_is_taken():
    import promptcli as pc

    with pytest.raises(UsageError, match="topp"):
        pc.search_heads("mini-bert", topp=3)
