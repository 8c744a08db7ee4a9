"""A command from a function of the library: its parameters are the options, its docstring the help.

``command_of(fit, flags={...})`` decorates what shows the result; ``expand`` makes of it what Typer
takes. cli/commands/models.py shows how.
"""

import builtins
import dataclasses
import functools
import inspect
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from promptcli.cli.options import MODEL, Fields, choice_of, data_folder
from promptcli.cli.options import Flag as Flag  # for the commands
from promptcli.recipe import Choice

Show = TypeVar("Show", bound=Callable[..., None])
#: Makes the value of a parameter from the values of all options.
_Reader = Callable[[Mapping[str, Any]], Any]


#: A flag, or only its names; a group of options in place of the parameter; None: not offered.
FlagRow = Flag | str | Fields | None
#: Parameters that are given in the same way by every command; options of the program (``Runtime``)
#: are not among them.
_COMMON: dict[str, FlagRow] = {
    "output": "--output -o",
    "data_dir": Flag(type=Path | None, read=data_folder),
    "offline": None,
    "device": None,
    "threads": None,
}


def command_of(
    *functions: Callable[..., Any], flags: Mapping[str, FlagRow] | None = None
) -> Callable[[Show], Show]:
    """Decorate the function that shows a result with the functions of the library that make it.

    Every ``partial`` parameter of the decorated function is one of ``functions``, in order, with
    the values from the command line; its other parameters are further options. An option that
    several functions take is offered once, and only those of the first function may be required. A
    required parameter is an argument, any other an option.

    Args:
        functions: Functions with a Google-style docstring.
        flags: Parameter -> how it is given, if not by ``--parameter-name``.
    """

    def mark(show: Show) -> Show:
        show.functions, show.flags = functions, flags or {}  # type: ignore[attr-defined]
        return show

    return mark


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command as Typer takes it: library functions and groups of settings are replaced by
    their options.
    """
    flags, functions = _COMMON | getattr(command, "flags", {}), getattr(command, "functions", ())
    options, reads = dict[str, inspect.Parameter](), dict[str, _Reader]()
    waiting, hints = iter(functions), _hints(command)
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        if (get_origin(hint) or hint) is functools.partial:
            added, reads[name] = _of_function(next(waiting), flags, first=not options)
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
            group = Fields(hint, defaults=True)
            added, reads[name] = list(group.options()), group.read
        elif isinstance(fields := getattr(hint, "__metadata__", [None])[0], Fields):
            added, reads[name] = (
                list(fields.options()),
                functools.partial(functools.partial, fields.changes),
            )
        else:
            added = [parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)]
            reads[name] = operator.itemgetter(name)
        for option in added:
            options.setdefault(option.name, option)

    def call(**given: Any) -> None:
        return command(**{name: read(given) for name, read in reads.items()})

    call.__name__, call.__doc__ = (
        command.__name__,
        prose(*(() if command.__doc__ is None else (command,)), *functions),
    )
    call.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in options.values()}
    return call


def _of_function(
    function: Callable[..., Any], flags: Mapping[str, FlagRow], *, first: bool
) -> tuple[list[inspect.Parameter], _Reader]:
    """Return the options of a function, and what makes its partial application of their values."""
    sentences, hints, parameters = (
        arguments_of(function),
        _hints(function),
        inspect.signature(function).parameters,
    )
    options, reads = list[inspect.Parameter](), dict[str, _Reader]()
    named = re.compile(rf"`({'|'.join(name for name in parameters if '_' in name) or '_'})`")
    for name, parameter in parameters.items():
        if flags.get(name, "") is not None:
            about = named.sub(
                lambda match: f"`--{match[1].replace('_', '-')}`",
                _for_users(sentences.get(name, "")),
            )
            added, reads[name] = _of_parameter(
                parameter, hints[name], flags.get(name), about, first=first
            )
            options += added

    def bind(given: Mapping[str, Any]) -> functools.partial[Any]:
        values = dict[str, Any]()
        for name, read in reads.items():
            value = read(given)
            if parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
                values |= value
            elif value is not None or parameters[name].default is None:
                values[name] = value
        return functools.partial(function, **values)

    return options, bind


def _of_parameter(
    parameter: inspect.Parameter, hint: Any, row: FlagRow, sentence: str, *, first: bool
) -> tuple[list[inspect.Parameter], _Reader]:
    settings = [
        each for each in _members(hint) if isinstance(each, type) and dataclasses.is_dataclass(each)
    ]
    if row is None and _is_model(hint):
        row = MODEL
    elif row is None and settings:
        row = Fields(settings[0], defaults=True)
    if isinstance(row, Fields):
        further = parameter.kind is inspect.Parameter.VAR_KEYWORD
        return list(row.options()), row.changes if further else row.read
    flag = row if isinstance(row, Flag) else Flag(row or "")
    annotation, name = flag.type or _option_type(hint), parameter.name
    if annotation is None or not (flag.help or sentence):
        missing = "type of an option" if annotation is None else "sentence in Args"
        raise TypeError(f"parameter {name} has no {missing}; say more in `flags`")
    default = parameter.default
    if flag.required:
        default = parameter.empty
    elif default == () or (
        default is parameter.empty and (not first or NoneType in get_args(flag.type))
    ):
        default = None
    value = flag.read or (_choices if _is_model(hint) else lambda given: given)
    return [flag.option(name, annotation, default, sentence)], lambda given: value(given[name])


def _choices(names: str | list[str] | None) -> Any:
    return [choice_of(name) for name in names] if isinstance(names, list) else choice_of(names)


# --- reading annotations and docstrings ---


class _Names(dict[str, Any]):
    """Names of a module; a name imported only for type checking becomes a class of that name."""

    def __missing__(self, name: str) -> Any:
        stand_in = {"__class_getitem__": lambda item: None}
        return getattr(builtins, name, None) or type(name, (), stand_in)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function, those that are written as text too."""
    names = _Names(inspect.unwrap(function).__globals__)
    return get_type_hints(function, localns=names, include_extras=True)


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the only one, without None."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(member for member in members if member is not NoneType)


def _is_model(hint: Any) -> bool:
    """Return whether a type is ``models.loading.Model``, or a sequence of it."""
    inner = [get_args(member)[0] for member in _members(hint) if _is_sequence(member)]
    names = [
        getattr(member, "__name__", "") for each in (hint, *inner) for member in _members(each)
    ]
    return bool({"Model", Choice.__name__} & set(names))


def _is_sequence(hint: Any) -> bool:
    return get_origin(hint) in (list, tuple, Sequence, Iterable, Collection)


def _option_type(hint: Any) -> Any:
    """Return what the command line parses for a type: the first member of a union that can be
    typed; None: nothing.
    """
    for member in _members(hint):
        if member in (bool, int, float, str, Path) or get_origin(member) is Literal:
            return member
        if _is_sequence(member):
            inner = str if _is_model(member) else _option_type(get_args(member)[0])
            return None if inner is None else list[inner]  # type: ignore[valid-type]
    return str if _is_model(hint) else None


_SECTION = re.compile(r"^(?:Args|Returns|Yields|Raises|Examples?|Attributes):$", re.MULTILINE)


def prose(*functions: Callable[..., Any]) -> str:
    """Return the docstring of the first function up to its sections, a paragraph a line."""
    text = (
        _SECTION.split(inspect.getdoc(functions[0]) or "")[0].replace("``", "`")
        if functions
        else ""
    )
    return "\n\n".join(
        _for_users(" ".join(paragraph.split())) for paragraph in text.strip().split("\n\n")
    )


#: Functions of the library that docstrings refer to -> their commands.
_COMMAND_NAMES = {
    "build_index": "index build",
    "search_index": "index search",
    "sync_index": "index sync",
    "search_heads": "ditto-search",
}


def _for_users(text: str) -> str:
    """Return a docstring's sentences for the command line: without those on Python, and with
    commands for functions.

    Example:
        >>> _for_users("A file. In Python also a list. See `build_index`.")
        'A file. See `promptcli index build`.'
    """
    sentences = re.split(r"(?<=\.) (?=[A-Z])", text)
    kept = " ".join(sentence for sentence in sentences if not sentence.startswith("In Python"))
    for function, command in _COMMAND_NAMES.items():
        kept = kept.replace(f"`{function}`", f"`promptcli {command}`")
    return kept


def arguments_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return the sentences of ``Args:`` by parameter.

    Example:
        >>> arguments_of(command_of)["functions"]
        'Functions with a Google-style docstring.'
    """
    _, _, rest = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    entries = re.finditer(
        r"^ {4}\**(\w+): (.*(?:\n {8}.*)*)", _SECTION.split(rest)[0], re.MULTILINE
    )
    return {entry[1]: " ".join(entry[2].split()).replace("``", "`") for entry in entries}
