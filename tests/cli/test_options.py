"""Options that several commands share."""

import dataclasses
import re
from dataclasses import dataclass

import promptcli
from promptcli.cli.command_line import command as program
from promptcli.cli.options import RUNTIME, chosen_model, field_types, parse_pairs
from promptcli.data.vectors.formats import VECTOR_FORMATS
from promptcli.encoder.pooling import STATES, WEIGHTS
from promptcli.encoder.prompts import PROMPTS
from promptcli.encoder.transforms import TRANSFORMS
from promptcli.recipe import ModelChoice, Recipe
from promptcli.settings import setting
from promptcli.training.methods import METHODS
from tests.comparing import refusal


@dataclass(frozen=True)
class Settings:
    layers: int = setting(4, "Layers.", min=1, panel="Model")
    names: tuple[str, ...] = setting((), "Names.")
    tied: bool | None = setting(None, "Tied.")
    rate: float = setting(0.5, "Rate.")
    tokens: int = 0


def test_options_of_the_model_and_of_the_program_are_a_choice():
    assert chosen_model(None) == ModelChoice()
    where = {"device": "cpu", "dtype": "float32", "backend": "onnx"}
    RUNTIME.set(ModelChoice(**where))
    chosen = chosen_model("cls", pooling="last/avg", set=["max-length=9"], dim=64)
    RUNTIME.set(ModelChoice())
    assert chosen == ModelChoice("cls", {"pooling": "last/avg", "max_length": 9}, dim=64, **where)


def test_set_reads_fields_by_their_types():
    read = parse_pairs(field_types(Settings), ["layers=2", "tied=true", "rate=1e-3"])
    assert read == {"layers": 2, "tied": True, "rate": 1e-3}
    assert parse_pairs(field_types(Recipe), ["max-length=32", "denoise=hidden"]) == {
        "max_length": 32,
        "denoise": "hidden",
    }
    for pair, message in (
        ("layers", "'layers'"),
        ("layers=a", "--set layers: 'a'.* whole number"),
        ("tied=yes", "true or false"),
        ("layrs=1", "mean layers"),
    ):
        with refusal(message):
            parse_pairs(field_types(Settings), [pair])
    with refusal("use --prompt"):
        chosen_model(set=["prompt=x"])


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
        name
        for name in promptcli.__all__
        if "_" in name or name in ("ModelChoice", "Encoder", "Recipe")
    }
    for path, row in program().walk():
        texts = [row.help or "", *(getattr(option, "help", None) or "" for option in row.params)]
        quoted = {word for text in texts for word in re.findall(r"`(\w+)", text)}
        assert (path, quoted & names) == (path, set())
        assert not any("In Python" in text for text in texts), path


def test_the_help_shows_no_type_of_python(run):
    for path, _ in program().walk():
        shown = run(*path, "--help").out
        assert not re.search(r"<(bool|int|str|float|path|list)", shown), path
