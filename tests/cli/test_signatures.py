"""Options made from the parameters of a function with its ``Args:``, and from the fields of a
dataclass.
"""

import dataclasses
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
import typer

import promptcli
from promptcli.cli.app import command as program
from promptcli.cli.options import (
    RECIPE,
    RUNTIME,
    Json,
    Runtime,
    SettingOptions,
    kinds_of,
    parsed,
)
from promptcli.cli.signatures import Flag, arguments_of, command_of, expand
from promptcli.data.vectors import FORMATS
from promptcli.encoder.pooling import STATES, WEIGHTS
from promptcli.encoder.prompts import PROMPTS
from promptcli.encoder.transforms import TRANSFORMS
from promptcli.errors import UsageError
from promptcli.recipe import Choice, Recipe
from promptcli.settings import setting
from promptcli.training.methods import METHODS

if TYPE_CHECKING:
    from promptcli.models.loading import Model


@dataclasses.dataclass(frozen=True)
class Limits:
    depth: int = setting(3, "How deep.", min=1)


def work(
    file: str | Path,
    model: "Model" = "mini",
    *,
    kind: Literal["small", "large"] = "small",
    layers: Sequence[int] = (),
    rate: float | None = None,
    with_text: bool = True,
    tied: bool | None = None,
    force: bool = False,
    limits: Limits | None = None,
    hidden: Any = None,
    **changes: str,
) -> str:
    """Do the ``work``.

    It takes a while.

    Args:
        file: File of sentences, in ``text``
            or CSV.
        model: An encoder.
        kind: How large.
        layers: Layers.
        rate: Rate.
        with_text: Store the text.
        tied: Tied.
        force: Overwrite.

    Raises:
        UsageError: Never.
    """
    return "worked"


def more(file: str, parts: int, *, rate: float = 0.5) -> int:
    """Do more.

    Args:
        file: Not shown.
        parts: Number of parts.
        rate: Not shown.
    """
    return parts


FLAGS = {"with_text": "--text/--no-text", "rate": Flag("--rate -r", min=0), "parts": Flag(min=1)}
FLAGS |= {"hidden": None, "changes": RECIPE}


@dataclasses.dataclass(frozen=True)
class Settings:
    layers: int = setting(4, "Layers.", min=1, panel="Model")
    names: tuple[str, ...] = setting((), "Names.")
    tied: bool | None = setting(None, "Tied.")
    rate: float = setting(0.5, "Rate.")
    tokens: int = 0


calls: list[Any] = []


@command_of(work, more, flags=FLAGS)
def command(
    work: "partial[str]",
    more: "partial[int]",
    extra: Annotated[int, typer.Option(help="Extra.")] = 1,
    json: Json = False,
) -> None:
    calls.append((work, more, extra, json))


def change(**options: Any) -> None:
    """Change the settings."""


@command_of(
    change,
    flags={"options": SettingOptions(Settings, panel="Run", flags={"names": "--name -n"})},
)
def changing(change: "partial[None]") -> None:
    calls.append(change.keywords)


def run(*words, of=command):
    calls.clear()
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(expand(of))
    app(list(words), standalone_mode=False)
    return calls[0] if calls else None


def test_a_sentence_of_the_docstring_is_the_help(capsys):
    assert arguments_of(work)["file"] == "File of sentences, in `text` or CSV."
    run("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "Do the `work`. It takes a while. Arguments" in shown
        and "Raises" not in shown
        and "--hidden" not in shown
    )
    assert (
        "File of sentences, in `text` or CSV." in shown
        and "How deep." in shown
        and "Not shown" not in shown
    )


def test_what_is_not_given_is_the_functions_default():
    work, more, extra, json = run("in.txt")
    assert (extra, json, more.keywords["file"], more.func) == (
        1,
        False,
        "in.txt",
        globals()["more"],
    )
    assert work() == "worked" and "parts" not in more.keywords and "rate" not in more.keywords
    assert work.keywords.pop("model") == Choice() and work.keywords.pop("limits") == Limits()
    assert work.keywords == {
        "file": "in.txt",
        "kind": "small",
        "rate": None,
        "with_text": True,
        "tied": None,
        "force": False,
    }


def test_values_have_the_types_of_the_parameters(monkeypatch):
    RUNTIME.set(Runtime(device="cpu", dtype="float32", backend="onnx"))
    line = (
        "in.txt -m cls --kind large --layers 1 --layers 2 -r 0.25 --no-text --no-tied --force"
        " --depth 4"
    )
    work, more, extra, json = run(
        *line.split(), "--pooling", "last/avg", "--parts", "2", "--extra", "3", "--json"
    )
    RUNTIME.set(Runtime())
    assert (extra, json, more()) == (3, True, 2)
    assert work.keywords == {
        "file": "in.txt",
        "kind": "large",
        "layers": [1, 2],
        "rate": 0.25,
        "with_text": False,
        "tied": False,
        "force": True,
        "limits": Limits(4),
        "pooling": "last/avg",
        "model": Choice(
            "cls", {"pooling": "last/avg"}, device="cpu", dtype="float32", backend="onnx"
        ),
    }


@pytest.mark.parametrize(
    "words", [(), ("x", "--kind", "huge"), ("x", "--parts", "0"), ("x", "--hidden", "1")]
)
def test_what_the_signature_does_not_allow_is_refused(words):
    with pytest.raises(Exception) as error:
        run(*words)
    assert hasattr(error.value, "format_message")


def test_a_parameter_without_a_sentence_is_said():
    def untold(value: int = 1) -> None:
        """Do."""

    @command_of(untold)
    def show(call: "partial[None]") -> None:
        call()

    with pytest.raises(TypeError, match="parameter value has no sentence in Args"):
        expand(show)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {}),
        ("--rate 0", {"rate": 0.0}),
        ("-n a --name b --no-tied", {"names": ("a", "b"), "tied": False}),
        ("--layers 2 --rate 1e-3", {"layers": 2, "rate": 1e-3}),
    ],
)
def test_changes_of_settings_are_what_was_given(line, expected):
    assert run(*line.split(), of=changing) == expected


def test_set_reads_fields_by_their_types():
    read = parsed(kinds_of(Settings), ["layers=2", "tied=true", "rate=1e-3"])
    assert read == {"layers": 2, "tied": True, "rate": 1e-3}
    assert parsed(kinds_of(Recipe), ["max-length=32", "denoise=hidden"]) == {
        "max_length": 32,
        "denoise": "hidden",
    }
    assert parsed(kinds_of(Settings), ["rate=1,2"], many=True) == {"rate": [1.0, 2.0]}
    for pair, message in (
        ("layers", "'layers'"),
        ("layers=a", "--set layers: 'a'.* whole number"),
        ("tied=yes", "true or false"),
        ("layrs=1", "mean layers"),
    ):
        with pytest.raises(UsageError, match=message):
            parsed(kinds_of(Settings), [pair])


def test_the_help_names_every_row(run):
    about = {
        item.name: item.metadata["help"]
        for item in dataclasses.fields(Recipe)
        if "help" in item.metadata
    }
    for text, rows in (
        (about["pooling"], [*STATES, *WEIGHTS]),
        (about["transforms"], TRANSFORMS),
        (about["prompt"], [name for name in PROMPTS if name != "soft-template-lookup"]),
        (run("embed", "--help").out, FORMATS),
        (run("train", "--help").out, METHODS),
    ):
        assert [name for name in rows if name not in text] == []


def test_the_help_names_no_function_of_python():
    names = {
        name for name in promptcli.__all__ if "_" in name or name in ("Choice", "Encoder", "Recipe")
    }
    for path, row in program().walk():
        texts = [row.help or "", *(getattr(option, "help", None) or "" for option in row.params)]
        quoted = {word for text in texts for word in re.findall(r"`(\w+)", text)}
        assert (path, quoted & names) == (path, set())
        assert not any("In Python" in text for text in texts), path
