"""Help pages that fit 80 columns, and what is wrong with a command line in one line."""

import dataclasses
import functools
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from promptcli.cli.console import as_typed, draws_bars, progress, speaking
from promptcli.cli.options import RUNTIME, Runtime, Section
from promptcli.cli.signatures import expand
from promptcli.errors import PromptcliError, UsageError, did_you_mean, unknown
from promptcli.notes import offline, showing

_NO_COMMAND = re.compile(r"No such command '(.*?)'\.")


#: Former spelling of a command -> what to type.
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
    "index pairs": "index dups --pairs K",
}
#: Former spelling of an option -> what to type.
_MOVED_OPTIONS = {
    "--recipe": "--model",
    "-r": "-m",
    "--template": "--prompt",
    "--paper": "--backbone bert-base-uncased --model prompt",
    "--causal": "--objective causal",
}


def check_spelling(arguments: Sequence[str]) -> None:
    """Refuse a command that has another name now, by that name."""
    for given in (" ".join(arguments[:1]), " ".join(arguments[:2])):
        if given in _MOVED:
            raise UsageError(f"`promptcli {given}` is now `promptcli {_MOVED[given]}`")


#: Stands for a hyphen while text is wrapped, so that no name and no value is broken there.
_HYPHEN = "\u2011"
_Formatter: Any = TyperCommand.context_class.formatter_class


class WholeWords(_Formatter):  # type: ignore[misc]
    """Lays out a help page without breaking words at hyphens."""

    def write_dl(self, rows: Sequence[tuple[str, str]], *more: Any) -> None:
        """Write names and what each is."""
        super().write_dl([(name, says.replace("-", _HYPHEN)) for name, says in rows], *more)

    def write_text(self, text: str) -> None:
        """Write a paragraph."""
        super().write_text(text.replace("-", _HYPHEN))

    def getvalue(self) -> str:
        """Return the page."""
        return str(super().getvalue().replace(_HYPHEN, "-"))


#: The commands of the papers' methods, which come first.
_FIRST = ("embed", "eval", "train", "search-templates", "ditto-search", "optiprompt", "index")


class Listed(TyperCommand):
    """A row of the table of commands; the command itself is loaded when it is asked for.

    Args:
        name: As it is typed.
        target: ``module.function`` of promptcli.cli.commands.
        short_help: In the list of commands.
        word: First argument of the target that the name stands for.
        ends: A function of the module that makes what the help page ends with.
    """

    def __init__(self, name: str, target: str, short_help: str, *, word: str = "", ends: str = "") -> None:
        super().__init__(name, short_help=short_help)
        self.target, self.word, self.ends = target, word, ends

    @functools.cached_property
    def loaded(self) -> "PanelHelpCommand":
        """The command with its options."""
        file, _, name = self.target.partition(".")
        module = importlib.import_module(f"promptcli.cli.commands.{file}")
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(self.name, cls=PanelHelpCommand, short_help=self.short_help)(expand(getattr(module, name)))
        command = typer.main.get_command(app)
        assert isinstance(command, PanelHelpCommand)
        command.word = self.word
        command.ends = getattr(module, self.ends) if self.ends else None
        return command

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the help in the list of commands."""
        return self.short_help or ""


class Commands(TyperGroup):
    """A table of commands: the program, or a group of it."""

    @classmethod
    def of(cls, name: str, about: str, *rows: Listed) -> "Commands":
        """Make a group of commands."""
        commands: Any = {row.name: row for row in rows}
        return cls(name=name, help=about, commands=commands, no_args_is_help=True)

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

    def get_help(self, ctx: Any) -> str:
        """Return the help page."""
        ctx.formatter_class = WholeWords
        return super().get_help(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of the papers' methods, the others, and the options."""
        if ctx.parent:
            super().format_options(ctx, formatter)
            return
        rows = {name: (name, command.get_short_help_str(limit=60)) for name, command in self.commands.items()}
        shared = program_options(ctx)
        own = [option for option in self.get_params(ctx) if option not in shared]
        records = {"Options of every command": shared, "Options": own}
        with formatter.section("Commands"):
            formatter.write_dl([rows[name] for name in _FIRST])
        with formatter.section("More commands"):
            formatter.write_dl([rows[name] for name in sorted(rows) if name not in _FIRST])
        for heading, options in records.items():
            with formatter.section(heading):
                formatter.write_dl([record for option in options if (record := _record(option, ctx))])


class PanelHelpCommand(TyperCommand):
    """A command whose help lists its options under the headings of their panels, as plain text that wraps."""

    word = ""
    ends: Callable[[Sequence[str]], Section] | None = None

    def get_help(self, ctx: Any) -> str:
        """Return the help page."""
        ctx.formatter_class = WholeWords
        return super().get_help(ctx)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the line of the list of commands in full: it wraps, where typer would cut it."""
        return self.short_help or " ".join((self.help or "").partition("\n\n")[0].split())

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the command's own parameters and those of the whole program, which may stand after it, too."""
        return [*super().get_params(ctx), *program_options(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line; refuse numbers that are not finite or have more than 64 bits, and empty options.

        An empty one comes from a variable of the shell that is not set, and would be taken for the current folder, or
        for the default.
        """
        given = tuple(args)
        if self.word:
            args = [self.word, *args]
        ctx.meta["words"] = tuple(args)
        rest: list[str] = super().parse_args(ctx, args)
        for parameter in self.get_params(ctx):
            value = ctx.params.get(parameter.name)
            empty = _given(parameter, given) == ""
            named = parameter.name in ("file", "files")  # else a sentence, which may be empty
            unset = value == Path() or (value in ("", [""]) and named)
            if empty or ("" in given and unset and parameter.param_type_name == "argument"):
                raise UsageError(f"{_written(parameter)} is empty (a variable that is not set?); give a value")
            if isinstance(value, float | int) and not abs(value) < 1 << 63:
                name = _written(parameter).partition(" ")[0]
                raise UsageError(
                    f"{name} {str(value)[:60]} is not allowed: give a number that is finite and below 2^63; all"
                    f" options: {ctx.command_path} --help"
                )
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what follows the command's name in the line of usage."""
        arguments = [] if self.word else [one for one in self.params if one.param_type_name == "argument"]
        return ["[OPTIONS]", *(one.metavar or one.name.upper() for one in arguments)]

    def invoke(self, ctx: Any) -> Any:
        """Run the command: its progress is shown, without notes where ``--quiet`` is given."""
        outer, given = ctx.find_root().params, {}
        for option in program_options(ctx):
            value = ctx.params.pop(option.name)
            stands_here = ctx.get_parameter_source(option.name).name == "COMMANDLINE"
            given[option.name] = value if stands_here else outer.get(option.name, value)
        runtime = Runtime(**given)
        runtime.configure_libraries()
        RUNTIME.set(runtime)
        with (
            speaking(quiet=runtime.quiet, written=_written_fields(self, ctx)),
            offline(runtime.offline),
            showing(progress if draws_bars() else None),
        ):
            try:
                return super().invoke(ctx)
            except PromptcliError as error:
                error.args = (as_typed(str(error)),)
                raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section for each panel, the command's own first; the program's options are named in one line."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for parameter in super().get_params(ctx):
            said = self.word and parameter.name in ("words", "method")
            if not said and (record := _record(parameter, ctx)) is not None:
                default = "Arguments" if parameter.param_type_name == "argument" else "Options"
                panels.setdefault(getattr(parameter, "rich_help_panel", None) or default, []).append(record)
        order = {"Arguments": 0, "Options": 1}
        sections = sorted(panels.items(), key=lambda panel: order.get(panel[0], 2))
        if self.ends:
            sections.append(self.ends(ctx.meta.get("words", ())))
        with speaking(written=_written_fields(self, ctx)):
            for heading, rows in sections:
                with formatter.section(heading):
                    formatter.write_dl([(name, as_typed(says)) for name, says in rows])
        names = " ".join(max(option.opts, key=len) for option in program_options(ctx))
        formatter.write_paragraph()
        formatter.write_text(f"Also: {names}; see promptcli --help.")


#: Bounds as typer writes them -> as people do.
_BOUNDS = (
    (r"\s*\[x>=[01]\]", ""),  # what nobody would give
    (r"; x>=[01]\]", "]"),
    (r"x>=(\S+)\]", r"\1 or more]"),
    (r"(\S+)<=x<=(\S+)\]", r"\1 to \2]"),
    (r"default: \((.*)\)", r"default: \1"),
)


def _record(parameter: Any, ctx: Any) -> tuple[str, str] | None:
    """Return how a parameter is written and what it does, without what typer adds for types of its own."""
    found = parameter.get_help_record(ctx)
    if found is None:
        return None
    written, says = found
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper(), says.removesuffix("[required]").rstrip()
    for bounds, plain in _BOUNDS:
        says = re.sub(bounds, plain, says)
    return re.sub(r"<(?:list\[)?(\w+)(?: range|\])?>", r"<\1>", written), says


def _written_fields(command: Any, ctx: Any) -> dict[str, str]:
    """Return how the fields of the library are typed on a command line, by their names."""
    written = {name: f"--set {name.replace('_', '-')}" for name in getattr(command.callback, "settable", ())}
    options = [option for option in command.get_params(ctx) if option.param_type_name == "option"]
    return written | {option.name: max(option.opts, key=len) for option in options}


def program_options(ctx: Any) -> list[Any]:
    """Return the options that every command takes: those of the root that are fields of ``Runtime``."""
    names = {item.name for item in dataclasses.fields(Runtime)}
    return [option for option in ctx.find_root().command.params if option.name in names]


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
    if kind == "NoSuchOption" and (now := _moved(error.option_name, context.command)):
        return f"{error.option_name} is now {now}; {more}"
    if kind == "NoSuchOption":
        options = [
            name for option in context.command.get_params(context) for name in (*option.opts, *option.secondary_opts)
        ]
        if " " in error.option_name or not error.option_name.lstrip("-")[:1].isalpha():
            more = f'{more}; a sentence that begins with "-" stands after --: {command} -- "-5 degrees"'
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


def _moved(option: str, command: Any) -> str | None:
    """Return what to type for the former spelling of an option."""
    if option in _MOVED_OPTIONS:
        return _MOVED_OPTIONS[option]
    field = option.removeprefix("--no-").removeprefix("--")
    return f"--set {field}=VALUE" if field.replace("-", "_") in getattr(command.callback, "settable", ()) else None


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
