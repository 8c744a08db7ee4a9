"""Options made from the fields of jobs and of groups of settings."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
import typer

import promptcli
from promptcli.cli.command_line import command as program
from promptcli.cli.job_options import JobOptions
from promptcli.cli.options import RUNTIME, Json, Runtime, SettingOptions, kinds_of, parse_pairs
from promptcli.cli.typer_commands import typer_command
from promptcli.data.vectors import VECTOR_FORMATS
from promptcli.encoder.pooling import STATES, WEIGHTS
from promptcli.encoder.prompts import PROMPTS
from promptcli.encoder.transforms import TRANSFORMS
from promptcli.errors import UsageError
from promptcli.jobs import Job, argument, option
from promptcli.recipe import Choice, Recipe
from promptcli.settings import setting
from promptcli.training.methods import METHODS

if TYPE_CHECKING:
    from promptcli.models import loading
    from promptcli.models.loading import Model


@dataclass(frozen=True)
class Limits:
    depth: int = setting(3, "How deep.", min=1)


@dataclass(frozen=True)
class WorkJob(Job[None]):
    """Do the ``work``.

    It takes a while.

    Raises:
        UsageError: Never.
    """

    file: str | Path = argument("File of sentences, in `text` or CSV.", metavar="FILE")
    model: "Model" = option("mini", "An encoder.", kind="model")
    _: KW_ONLY
    kind: Literal["small", "large"] = option("small", "How large.")
    layers: Sequence[int] = option((), "Layers.")
    rate: float | None = option(None, "Rate.", names="rate r", min=0)
    with_text: bool = option(True, "Store the text.")
    tied: bool = option(False, "Tied.")
    limits: Limits = option(Limits(), "Limits.")
    inside: Any = option(None, "Not on the command line.", hidden=True)
    texts: "loading.Sentences | None" = option(None, "Of Python.", hidden=True)


@dataclass(frozen=True)
class PartsJob(Job[None]):
    """Make parts."""

    parts: int = option(1, "Number of parts.", min=1)
    rate: float = option(0.5, "Not offered: the work has it.")


@dataclass(frozen=True)
class Settings:
    layers: int = setting(4, "Layers.", min=1, panel="Model")
    names: tuple[str, ...] = setting((), "Names.")
    tied: bool | None = setting(None, "Tied.")
    rate: float = setting(0.5, "Rate.")
    tokens: int = 0


calls: list[Any] = []


def command(
    job: WorkJob,
    parts: Annotated[dict[str, Any], JobOptions(PartsJob, only=("parts",))],
    extra: Annotated[int, typer.Option(help="Extra.")] = 1,
    json: Json = False,
) -> None:
    calls.append((job, parts, extra, json))


Changes = Annotated[
    dict[str, Any], SettingOptions(Settings, panel="Run", flags={"names": "--name -n"})
]


def changing(changes: Changes) -> None:
    """Change the settings."""
    calls.append(changes)


def run(*words, of=command):
    calls.clear()
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command()(typer_command(of))
    app(list(words), standalone_mode=False)
    return calls[0] if calls else None


def test_the_docstring_of_the_job_is_the_help_and_a_field_has_its_own(capsys):
    run("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "Do the `work`. It takes a while. Arguments" in shown
    assert "File of sentences, in `text` or CSV." in shown and "How deep." in shown
    assert not any(text in shown for text in ("Raises", "--inside", "Not offered"))


def test_what_is_not_given_is_the_jobs_default():
    job, parts, extra, json = run("in.txt")
    assert (parts, extra, json) == ({}, 1, False)
    assert job == WorkJob("in.txt", Choice())


def test_values_have_the_types_of_the_fields():
    RUNTIME.set(Runtime(device="cpu", dtype="float32", backend="onnx"))
    line = (
        "in.txt -m cls --kind large --layers 1 --layers 2 -r 0.25 --no-with-text --tied --depth 4"
    )
    job, parts, extra, json = run(
        *line.split(), "--pooling", "last/avg", "--parts", "2", "--extra", "3", "--json"
    )
    RUNTIME.set(Runtime())
    assert (parts, extra, json) == ({"parts": 2}, 3, True)
    where = {"device": "cpu", "dtype": "float32", "backend": "onnx"}
    model = Choice("cls", {"pooling": "last/avg"}, **where)
    assert job == WorkJob(
        "in.txt",
        model,
        kind="large",
        layers=(1, 2),
        rate=0.25,
        with_text=False,
        tied=True,
        limits=Limits(4),
    )


@pytest.mark.parametrize(
    "words", [(), ("x", "--kind", "huge"), ("x", "--parts", "0"), ("x", "--inside", "1")]
)
def test_what_the_fields_do_not_allow_is_refused(words):
    with pytest.raises(Exception) as error:
        run(*words)
    assert hasattr(error.value, "format_message")


def test_a_field_without_a_type_that_can_be_typed_is_said():
    @dataclass(frozen=True)
    class Untyped(Job[None]):
        value: object = option(None, "Any.")

    with pytest.raises(TypeError, match="field value has no type of an option"):
        list(JobOptions(Untyped).options())


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
    read = parse_pairs(kinds_of(Settings), ["layers=2", "tied=true", "rate=1e-3"])
    assert read == {"layers": 2, "tied": True, "rate": 1e-3}
    assert parse_pairs(kinds_of(Recipe), ["max-length=32", "denoise=hidden"]) == {
        "max_length": 32,
        "denoise": "hidden",
    }
    assert parse_pairs(kinds_of(Settings), ["rate=1,2"], many=True) == {"rate": [1.0, 2.0]}
    for pair, message in (
        ("layers", "'layers'"),
        ("layers=a", "--set layers: 'a'.* whole number"),
        ("tied=yes", "true or false"),
        ("layrs=1", "mean layers"),
    ):
        with pytest.raises(UsageError, match=message):
            parse_pairs(kinds_of(Settings), [pair])


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
        (run("embed", "--help").out, VECTOR_FORMATS),
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
