"""Write docs/cli.md: a table of the options of every command, made from the commands themselves."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from promptcli.cli.command_line import VALUE_WORDS, Command, Commands, command

PAGE = Path(__file__).with_name("cli.md")
INTRODUCTION = """# Command reference

This page lists every command with all of its options. `make docs` writes it from the commands.
`promptcli COMMAND --help` shows the same in a terminal.
[Environment variables](getting-started.md#your-own-defaults) can set every option.
"""
PROGRAM_OPTIONS = """## Options of every command

Each command takes these options, before or after its name.
"""
SHARED_OPTIONS = """## Options of many commands

Each command names those that it takes.
"""
#: An option that at least so many commands take, with the same help, is described once.
MIN_SHARING_COMMANDS = 7
#: Type -> the word for its values, if the option names none.
TYPE_WORDS: dict[Any, str] = {str: "text", list[str]: "text", int: "integer", float: "number"}
PATH = "path"
#: The last sentence of a help text, if it names the default.
DEFAULT_SENTENCE = re.compile(r"(?:^|(?<=[.;] ))Default: (\S(?:[^.]|\.(?! ))*)\.$")
CODE = re.compile(r"(`[^`]*`)")

Row = tuple[str, str, str, str]


def page() -> str:
    """Return the page."""
    root = command()
    commands = [called for _, called in root.walk() if isinstance(called, Command)]
    counts = Counter(row for called in commands for row in rows_of(called.params))
    shared = [row for row, count in counts.items() if count >= MIN_SHARING_COMMANDS]
    sections = [
        INTRODUCTION,
        *contents(root),
        PROGRAM_OPTIONS,
        table_of_options(rows_of(root.params)),
    ]
    sections += [SHARED_OPTIONS, table_of_options(shared)]
    for panel, commands in panels(root):
        sections.append(f"## {panel}\n")
        for called in commands:
            sections += section(called, shared)
    return "\n".join(sections)


def panels(root: Commands) -> Iterator[tuple[str, list[Any]]]:
    """Yield the panels of the program's help page with their commands, in the same order."""
    by_panel: dict[str, list[Any]] = {}
    for called in root.commands.values():
        by_panel.setdefault(str(called.rich_help_panel), []).append(called)
    yield from by_panel.items()


def contents(root: Commands) -> Iterator[str]:
    """Yield, for each panel, a table of its commands with links to their sections."""
    for panel, commands in panels(root):
        rows = [
            (f"[`{called.name}`](#promptcli-{called.name})", sentence(called))
            for called in commands
        ]
        yield table((panel, "what it does"), rows)


def section(called: Any, shared: Iterable[Row]) -> Iterator[str]:
    """Yield the parts of the section of a command, or of a group and its commands."""
    if isinstance(called, Commands):
        yield f"### `promptcli {called.name}`\n\n{prose(str(called.help))}\n"
        for member in called.commands.values():
            yield from section_of_command(member, f"{called.name} {member.name}", "####", shared)
    else:
        yield from section_of_command(called, called.name, "###", shared)


def section_of_command(called: Any, path: str, level: str, shared: Iterable[Row]) -> Iterator[str]:
    """Yield the heading, the text and the tables of a command."""
    title = f"promptcli {path}"
    context = called.make_context(title, [], resilient_parsing=True)
    usage = called.get_usage(context).removeprefix("Usage: ")
    yield f"{level} `{title}`\n\n{prose(str(called.help))}\n\n```text\n{usage}\n```\n"
    if called.leading_words:
        words = ("promptcli", called.target.rpartition(":")[2], *called.leading_words)
        yield f"It is `{' '.join(words)}`, with the same options.\n"
        return
    rows = list(rows_of(called.params))
    own_rows = [row for row in rows if row not in shared]
    if own_rows:
        yield table_of_options(own_rows)
    shared_names = [row[0] for row in rows if row in shared]
    if shared_names:
        names = ", ".join(shared_names)
        yield f"[Options of many commands](#options-of-many-commands): {names}.\n"


def sentence(called: Any) -> str:
    """Return the sentence about a command on the program's help page."""
    return prose(called.short_help or called.help)


def rows_of(parameters: Iterable[Any]) -> Iterator[Row]:
    """Yield a row for each parameter: names, type of values, default and meaning."""
    for parameter in parameters:
        if parameter.hidden:
            continue
        meaning, default = parameter.help or "", typed(parameter.default)
        match = DEFAULT_SENTENCE.search(meaning)
        if match and not default:
            meaning, default = meaning[: match.start()].strip(), match[1]
        yield names(parameter), values_of(parameter), prose(default), prose(meaning)


def names(parameter: Any) -> str:
    """Return the names of a parameter as code."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar}`" + (" (required)" if parameter.required else "")
    options = [f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts)]
    return " ".join(options) + (" (required)" if parameter.required else "")


def values_of(parameter: Any) -> str:
    """Return the values that a parameter takes; "" for a flag."""
    if getattr(parameter, "is_flag", False):
        return ""
    annotation = parameter.type_descriptor.annotation
    if get_origin(annotation) is Literal:
        values = ", ".join(get_args(annotation))
    elif (
        parameter.param_type_name == "option"
        and parameter.metavar is not None
        and parameter.metavar not in VALUE_WORDS.values()
    ):
        values = f"`{parameter.metavar}`"
    else:
        values = TYPE_WORDS.get(annotation, PATH)
    values += "".join(
        f" {word} {bound:,}"
        for word, bound in (("from", parameter.min), ("to", parameter.max))
        if bound is not None
    )
    repeats = parameter.multiple or parameter.nargs == -1
    return f"{values}, repeatable" if repeats else values


def typed(default: Any) -> str:
    """Return a default as the user types it; "" if there is none."""
    if isinstance(default, list | tuple):
        return ", ".join(map(str, default))
    return "" if default is None or default is False else str(default)


def prose(text: str) -> str:
    """Return a text with Markdown's signs escaped outside of code."""
    pieces = CODE.split(text)  # text and code in turn
    for number in range(0, len(pieces), 2):
        pieces[number] = re.sub(r"([*\[\]])", r"\\\1", pieces[number]).replace("<", "&lt;")
    return "".join(pieces)


def table_of_options(rows: Iterable[Row]) -> str:
    """Return the table of parameters."""
    return table(("option", "takes", "default", "meaning"), rows)


def table(headers: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    cells = [[re.sub(r"\s+", " ", cell).replace("|", r"\|") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in (headers, ["---"] * len(headers), *cells)]
    return "\n".join(re.sub(" +", " ", line) for line in lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
