"""Options made from dataclasses: one for every described field, with its help, bounds and type."""

import dataclasses
from typing import Annotated

import pytest
import typer
from rich.console import Console

from promptcli.cli import console
from promptcli.cli.options import Changes, Fields, kinds_of, parsed
from promptcli.cli.signatures import expand
from promptcli.data.vectors import FORMATS
from promptcli.encoder.pooling import STATES, WEIGHTS
from promptcli.encoder.prompts import PROMPTS
from promptcli.encoder.transforms import TRANSFORMS
from promptcli.errors import UsageError
from promptcli.recipe import Recipe
from promptcli.training.methods import METHODS


@dataclasses.dataclass(frozen=True)
class Settings:
    layers: int = dataclasses.field(default=4, metadata={"help": "Layers.", "min": 1, "panel": "Model"})
    names: tuple[str, ...] = dataclasses.field(default=(), metadata={"help": "Names."})
    tied: bool | None = dataclasses.field(default=None, metadata={"help": "Tied."})
    rate: float = dataclasses.field(default=0.5, metadata={"help": "Rate."})
    tokens: int = 0


SETTINGS = Fields(Settings, panel="Run", flags={"names": "--name -n"})


def test_settings_are_read_by_their_types():
    read = parsed(kinds_of(Settings), ["layers=2", "tied=true", "rate=1e-3"])
    assert read == {"layers": 2, "tied": True, "rate": 1e-3}
    assert parsed(kinds_of(Recipe), ["max-length=32", "denoise=hidden"]) == {"max_length": 32, "denoise": "hidden"}
    assert parsed(kinds_of(Settings), ["rate=1,2"], many=True) == {"rate": [1.0, 2.0]}
    for pair, message in (
        ("layers", "--set takes FIELD=VALUE, one of layers, names, tied, rate; got 'layers'"),
        ("layers=a", "--set layers: 'a' is not allowed; it takes a whole number"),
        ("tied=yes", "it takes true or false"),
        ("layrs=1", "unknown setting 'layrs'; valid: layers, .*; did you mean layers"),
    ):
        with pytest.raises(UsageError, match=message):
            parsed(kinds_of(Settings), [pair])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {}),
        (["--rate", "0"], {"rate": 0.0}),
        (["-n", "a", "--name", "b", "--no-tied"], {"names": ("a", "b"), "tied": False}),
        (["--layers", "2", "--rate", "1e-3"], {"layers": 2, "rate": 1e-3}),
    ],
)
def test_the_command_line_reads_them(arguments, expected):
    found = []

    def command(options: Annotated[Changes, SETTINGS]) -> None:
        found.append(options())

    app = typer.Typer()
    app.command()(expand(command))
    app(args=arguments, standalone_mode=False)
    assert found == [expected]


def test_the_help_names_every_row(run):
    about = {item.name: item.metadata["help"] for item in dataclasses.fields(Recipe) if item.name != "dims"}
    for text, rows in (
        (about["pooling"], [*STATES, *WEIGHTS]),
        (about["transforms"], TRANSFORMS),
        (about["prompt"], [name for name in PROMPTS if name != "soft-template-lookup"]),
        (run("embed", "--help").out, FORMATS),
        (run("train", "--help").out, METHODS),
    ):
        assert [name for name in rows if name not in text] == []


def test_a_table_is_as_wide_as_it_is_or_folded_to_a_terminal(monkeypatch, capsys):
    rows = [("one", "1.00", "a text [of] several :smile: words", ""), ("two", "10.00", "short", "and another text")]
    console.result_table(("name", "value", "text", "more"), rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == [
        "one    1.00  a text [of] several :smile: words",
        "two   10.00  short                              and another text",
    ]
    monkeypatch.setattr(console, "out", Console(width=40, force_terminal=True))
    monkeypatch.setenv("COLUMNS", "40")
    console.result_table(("name", "value", "text", "more"), rows)
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 40


def test_options_of_a_recipe_without_a_model_are_said_to_leave_mini(run):
    changed = run("similarity", "a cat", "a dog", "--pooling", "last/avg")
    assert "assumed: mini-bert, [X] last/avg, not mini" in changed.err
    assert "not mini" not in run("similarity", "a cat", "a dog", "--set", "max-length=20").err  # it is mini, cut
    assert "not mini" not in run("similarity", "a cat", "a dog", "-m", "last-avg", "--pooling", "last/max").err


def test_a_sentence_that_begins_with_a_dash(run):
    assert "follows --" not in run("similarity", "a", "b", "--modle", "x").err
    assert run("similarity", "--", "-5 degrees", "cold").code == 0
