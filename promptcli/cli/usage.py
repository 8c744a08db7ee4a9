"""The table of commands, running a command, and the message for a wrong command line."""

import copy
import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from promptcli.cli.console import TYPED, draws_bars, progress
from promptcli.cli.options import RUNTIME, Runtime, Section
from promptcli.cli.signatures import expand
from promptcli.errors import UsageError
from promptcli.notes import offline, showing


class Listed(TyperCommand):
    """A row of the table of commands; the command itself is imported when it is asked for.

    Args:
        name: As it is typed.
        target: ``module.function`` of promptcli.cli.commands.
        short_help: In the list of commands.
        word: First argument of the target, if the name implies it.
        ends: Function of the module that makes the last section of the help page.
    """

    def __init__(self, name: str, target: str, short_help: str, *, word: str = "", ends: str = "") -> None:
        super().__init__(name, short_help=short_help)
        self.target, self.word, self.ends = target, word, ends

    @functools.cached_property
    def loaded(self) -> "Command":
        """The command with its options."""
        file, _, function = self.target.partition(".")
        module = importlib.import_module(f"promptcli.cli.commands.{file}")
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        epilog = f"Also: {' '.join(f'--{item.name}' for item in dataclasses.fields(Runtime))}; see promptcli --help."
        app.command(self.name, cls=Command, epilog=epilog)(expand(getattr(module, function)))
        command = typer.main.get_command(app)
        assert isinstance(command, Command)
        command.word, command.ends = self.word, getattr(module, self.ends) if self.ends else None
        return command


class Commands(TyperGroup):
    """A table of commands: the program, or a group of it."""

    @classmethod
    def of(cls, name: str, about: str, *rows: Listed) -> "Commands":
        """Make a group of commands."""
        commands: Any = {row.name: row for row in rows}
        return cls(name=name, help=about, commands=commands, no_args_is_help=True, rich_markup_mode="rich")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first word names, with its options."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, getattr(command, "loaded", command), rest

    def every(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
        """Yield every command and group below, loaded, with the words that name it."""
        for name, command in self.commands.items():
            yield (*path, name), getattr(command, "loaded", command)
            if isinstance(command, Commands):
                yield from command.every((*path, name))


class Command(TyperCommand):
    """A command that also takes the options of the program."""

    word = ""
    ends: Callable[[Sequence[str]], Section] | None = None

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's own parameters, and the program's hidden."""
        return [*super().get_params(ctx), *_program_options(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; refuse empty values of options and files, and numbers that are not finite."""
        empty = any(word == "" or (word.startswith("--") and word.endswith("=")) for word in args)
        ctx.meta["words"] = args = [self.word, *args] if self.word else args
        rest: list[str] = super().parse_args(ctx, list(args))
        for parameter in self.get_params(ctx):
            value = ctx.params.get(parameter.name)
            named = parameter.param_type_name == "option" or parameter.name in ("file", "files")
            if empty and (value == Path() or (named and value in ("", [""]))):
                raise UsageError(f"{_typed(parameter)} is empty (a variable that is not set?); give a value")
            if isinstance(value, float | int) and not abs(value) < 1 << 63:
                raise UsageError(f"{_typed(parameter)} {value} is not allowed; give a finite number below 2^63")
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command with the program's options, given before or after it."""
        values = dict(ctx.find_root().params)
        for option in _program_options(ctx):
            value, source = ctx.params.pop(option.name), ctx.get_parameter_source(option.name)
            if source.name == "COMMANDLINE":
                values[option.name] = value
        runtime = Runtime(**{item.name: values[item.name] for item in dataclasses.fields(Runtime)})
        runtime.configure_libraries()
        RUNTIME.set(runtime)
        TYPED.set({parameter.name: _typed(parameter) for parameter in self.get_params(ctx)})
        with offline(runtime.offline), showing(progress if draws_bars() else None):
            return super().invoke(ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write Typer's help page and the command's own section."""
        super().format_help(ctx, formatter)
        if self.ends is not None:
            heading, rows = self.ends(ctx.meta.get("words", ()))
            table = Table.grid(padding=(0, 2))
            for row in rows:
                table.add_row(*map(Text, row))
            Console().print(Panel(table, title=heading, title_align="left", border_style="dim"))


def _program_options(ctx: Any) -> list[Any]:
    """Return the options of every command, hidden."""
    options = [copy.copy(each) for each in ctx.find_root().command.params if each.name in Runtime.__dataclass_fields__]
    for option in options:
        option.hidden = True
    return options


def _typed(parameter: Any) -> str:
    """Return how a parameter is typed, e.g. ``FILE`` or ``--on``."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(max(parameter.opts, key=len))


def usage_message(error: Any) -> str:
    """Return the line for an error of Typer's parser, which has ``ctx`` and ``format_message``."""
    command = error.ctx.command_path if error.ctx else "promptcli"
    message = " ".join(error.format_message().split()).rstrip(".")
    dashed = getattr(error, "option_name", "")
    if " " in dashed or (dashed and not dashed.lstrip("-")[:1].isalpha()):
        message += f'; a sentence that begins with "-" follows --: {command} -- "-5 degrees"'
    return f"{message[:1].lower()}{message[1:]} (all options: {command} --help)"
