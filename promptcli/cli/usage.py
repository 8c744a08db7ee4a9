"""Help pages that fit 80 columns, and what is wrong with a command line in one line."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from promptcli.cli.console import progress, quieted
from promptcli.errors import UsageError, did_you_mean, unknown
from promptcli.notes import offline, showing

_NO_COMMAND = re.compile(r"No such command '(.*?)'\.")


#: Former spelling -> what to type.
_MOVED = {
    "transfer": "eval --task transfer",
    "perplexity": "eval --task perplexity:FILE",
    "rerun": "reproduce RESULT.json",
    "recipes": "models list --recipes",
    "config show": "config",
    "config set": "config KEY VALUE",
    "config unset": "config KEY --unset",
    "templates list": "templates",
    "templates show": "templates NAME",
    "templates check": "templates TEMPLATE",
    "vectors check": "vectors FOLDER",
    "vectors merge": "vectors FOLDER --merge FILE",
    "vectors sample": "vectors FOLDER --sample K",
    "index upsert": "index add --replace",
}


def check_spelling(arguments: Sequence[str]) -> None:
    """Refuse a command that has another name now, by that name."""
    for given in (" ".join(arguments[:1]), " ".join(arguments[:2])):
        if given in _MOVED:
            raise UsageError(f"`promptcli {given}` is now `promptcli {_MOVED[given]}`")


class PanelHelpCommand(TyperCommand):
    """A command whose help lists its options under the headings of their panels, as plain text that wraps."""

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the line of the list of commands in full: it wraps, where typer would cut it."""
        return self.short_help or " ".join((self.help or "").partition("\n\n")[0].split())

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; refuse numbers that are not finite or have more than 64 bits, and empty options.

        An empty one comes from a variable of the shell that is not set, and would be taken for the current folder, or
        for the default.
        """
        given = tuple(args)
        rest: list[str] = super().parse_args(ctx, args)
        for parameter in self.get_params(ctx):
            value = ctx.params.get(parameter.name)
            empty = _given(parameter, given) == ""
            if empty or ("" in given and value == Path() and parameter.param_type_name == "argument"):
                raise UsageError(f"{_written(parameter)} is empty (a variable that is not set?); give a value")
            if isinstance(value, float | int) and not abs(value) < 1 << 63:
                name = _written(parameter).partition(" ")[0]
                raise UsageError(
                    f"{name} {str(value)[:60]} is not allowed: give a number that is finite and below 2^63; all"
                    f" options: {ctx.command_path} --help"
                )
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command: its progress is shown, without notes where ``--quiet`` is given."""
        given = ctx.params.get
        with quieted(given("quiet", False)), offline(given("offline", False)), showing(progress):
            return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each panel: the command's own first, what all commands share last."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                default = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(record)
        order = {"Arguments": 0, "Options": 1, "Runtime": 3}
        for name, records in sorted(panels.items(), key=lambda panel: order.get(panel[0], 2)):
            with formatter.section(name):
                formatter.write_dl(records)


def usage_message(error: Any, arguments: Sequence[str]) -> str:
    """Return the line for a usage error of typer's parser.

    Args:
        error: With ``ctx`` and ``format_message``; the parser's classes have moved between typer's releases, so they
            are known by their names.
        arguments: The command line, for the value that was given.
    """
    context = error.ctx
    command = context.command_path if context else " ".join(["promptcli", *arguments[:1]])
    more = f"all options: {command} --help"
    message = error.format_message()
    kind = type(error).__name__
    if kind == "NoSuchOption":
        options = [name for option in context.command.params for name in (*option.opts, *option.secondary_opts)]
        near = did_you_mean(error.option_name, [name for name in options if name.startswith("--")])
        return f"{command} has no option {error.option_name}; {more}{near}"
    if unknown_command := _NO_COMMAND.match(message):
        return str(unknown("command", unknown_command[1], context.command.list_commands(context)))
    if kind == "MissingParameter" and error.param is not None:
        wanted = [_written(option) for option in context.command.params if option.required]
        says = (error.param.help or "").split(". ")[0].rstrip(".")
        return f"{_written(error.param)} is missing: {says}; type: {' '.join([command, *wanted])}; {more}"
    if kind == "BadParameter" and error.param is not None:
        given = _given(error.param, arguments)
        name = max(error.param.opts, key=len) if given is not None else _written(error.param)
        return f"{' '.join([name, given or ''])} is not allowed: {error.message}; {more}"
    return f"{message[:1].lower()}{message[1:].rstrip('.')}; {more}"


def _written(parameter: Any) -> str:
    """Return how a parameter is typed, e.g. ``FILE`` or ``--on ON``."""
    name = str(parameter.name).upper()
    return name if parameter.param_type_name == "argument" else f"{max(parameter.opts, key=len)} {name}"


def _given(parameter: Any, arguments: Sequence[str]) -> str | None:
    """Return the value that follows an option on the command line."""
    for place, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option in parameter.opts:
            return value if equals else next(iter(arguments[place + 1 :]), None)
    return None
