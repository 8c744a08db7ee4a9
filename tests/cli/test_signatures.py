"""Options made from the parameters of a function and its ``Args:``."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
import typer

from promptcli.cli.options import RECIPE, RUNTIME, Json, Runtime
from promptcli.cli.signatures import Flag, arguments_of, command_of, expand
from promptcli.recipe import Choice
from promptcli.settings import setting

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
calls: list[Any] = []


@command_of(work, more, flags=FLAGS)
def command(
    work: "partial[str]",
    more: "partial[int]",
    extra: Annotated[int, typer.Option(help="Extra.")] = 1,
    json: Json = False,
) -> None:
    calls.append((work, more, extra, json))


def run(*words):
    calls.clear()
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(expand(command))
    app(list(words), standalone_mode=False)
    return calls[0] if calls else None


def test_a_sentence_of_the_docstring_is_the_help(capsys):
    assert arguments_of(work)["file"] == "File of sentences, in `text` or CSV."
    run("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "Do the `work`. It takes a while. Arguments" in shown and "Raises" not in shown and "--hidden" not in shown
    assert "File of sentences, in `text` or CSV." in shown and "How deep." in shown and "Not shown" not in shown


def test_what_is_not_given_is_the_functions_default():
    work, more, extra, json = run("in.txt")
    assert (extra, json, more.keywords["file"], more.func) == (1, False, "in.txt", globals()["more"])
    assert work() == "worked" and "parts" not in more.keywords and "rate" not in more.keywords
    assert work.keywords.pop("model") == Choice() and work.keywords.pop("limits") == Limits()
    assert work.keywords == {
        "file": "in.txt", "kind": "small", "rate": None, "with_text": True, "tied": None, "force": False,
    }  # fmt: skip


def test_values_have_the_types_of_the_parameters(monkeypatch):
    RUNTIME.set(Runtime(device="cpu", dtype="float32", backend="onnx"))
    line = "in.txt -m cls --kind large --layers 1 --layers 2 -r 0.25 --no-text --no-tied --force --depth 4"
    work, more, extra, json = run(*line.split(), "--pooling", "last/avg", "--parts", "2", "--extra", "3", "--json")
    RUNTIME.set(Runtime())
    assert (extra, json, more()) == (3, True, 2)
    assert work.keywords == {
        "file": "in.txt", "kind": "large", "layers": [1, 2], "rate": 0.25, "with_text": False, "tied": False,
        "force": True, "limits": Limits(4), "pooling": "last/avg",
        "model": Choice("cls", {"pooling": "last/avg"}, device="cpu", dtype="float32", backend="onnx"),
    }  # fmt: skip


@pytest.mark.parametrize("words", [(), ("x", "--kind", "huge"), ("x", "--parts", "0"), ("x", "--hidden", "1")])
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
