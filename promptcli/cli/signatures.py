"""A command from a function of the library: its parameters are the options, its docstring the help.

``command_of(fit, flags={...})`` decorates what shows the result; ``expand`` makes of it what Typer takes.
cli/commands/export.py shows how.
"""

import builtins
import dataclasses
import functools
import inspect
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer

from promptcli.cli.options import MODEL, Fields, choice_of, data_folder
from promptcli.extensions import added_to
from promptcli.recipe import Choice

Show = TypeVar("Show", bound=Callable[..., None])
#: Makes the value of a parameter from the values of all options.
_Reader = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Flag:
    """How a parameter is given on the command line, if its name, type and sentence in ``Args:`` do not say it all."""

    names: str = ""  #: ``--output -o``, ``--text/--no-text``; of an argument its metavar: ``FILE...``, ``[KEY]``
    min: float | None = None
    max: float | None = None
    metavar: str | None = None
    panel: str | None = None
    help: str | None = None  #: in place of the sentence in ``Args:``
    added: str = ""  #: table of promptcli.extensions whose installed rows end the help
    type: Any = None  #: in place of the annotation
    read: Callable[[Any], Any] | None = None  #: makes what the function takes from what was typed
    required: bool = False  #: on the command line, if not in the library


#: A flag, or only its names; a group of options in place of the parameter; None: not offered.
FlagRow = Flag | str | Fields | None
#: Parameters that are given in the same way by every command; options of the program (``Runtime``) are not among them.
_COMMON: dict[str, FlagRow] = {
    "output": "--output -o",
    "data_dir": Flag(type=Path | None, read=data_folder),
    "offline": None,
    "device": None,
    "threads": None,
}


def command_of(*functions: Callable[..., Any], flags: Mapping[str, FlagRow] | None = None) -> Callable[[Show], Show]:
    """Decorate the function that shows a result with the functions of the library that make it.

    Every ``partial`` parameter of the decorated function is one of ``functions``, in order, with the values from the
    command line; its other parameters are further options. An option that several functions take is offered once, and
    only those of the first function may be required. A required parameter is an argument, any other an option.

    Args:
        functions: Functions with a Google-style docstring.
        flags: Parameter -> how it is given, if not by ``--parameter-name``.
    """

    def mark(show: Show) -> Show:
        show.functions, show.flags = functions, flags or {}  # type: ignore[attr-defined]
        return show

    return mark


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command as Typer takes it: library functions and option groups are replaced by their options."""
    options, reads = _Options(getattr(command, "flags", {})), dict[str, _Reader]()
    functions = list(getattr(command, "functions", ()))
    waiting = iter(functions)
    hints = _hints(command)
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        if (get_origin(hint) or hint) is functools.partial:
            reads[name] = options.add_function(next(waiting), first=not options.parameters)
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
            reads[name] = options.add_group(hint)
        elif isinstance(fields := getattr(hint, "__metadata__", [None])[0], Fields):
            options.add_fields(fields)
            reads[name] = functools.partial(functools.partial, fields.changes)
        else:
            reads[name] = options.add(name, hint, parameter.default)

    def call(**given: Any) -> None:
        return command(**{name: read(given) for name, read in reads.items()})

    parameters = list(options.parameters.values())
    call.__name__, call.__doc__ = command.__name__, prose(*(() if command.__doc__ is None else (command,)), *functions)
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


class _Options:
    """The options of a command, and how the values of parameters are made from them."""

    def __init__(self, flags: Mapping[str, FlagRow]) -> None:
        self.parameters: dict[str, inspect.Parameter] = {}
        self._flags: dict[str, FlagRow] = {**_COMMON, **flags}

    def add(self, name: str, annotation: Any, default: Any) -> _Reader:
        """Add an option, unless there is one of that name."""
        kind = inspect.Parameter.KEYWORD_ONLY
        self.parameters.setdefault(name, inspect.Parameter(name, kind, default=default, annotation=annotation))
        return operator.itemgetter(name)

    def add_group(self, group: type) -> _Reader:
        """Add the options of a dataclass; they make an object of it."""
        hints, names = get_type_hints(group, include_extras=True), [item.name for item in dataclasses.fields(group)]
        for item in dataclasses.fields(group):
            self.add(item.name, hints[item.name], item.default)
        return lambda given: group(**{name: given[name] for name in names})

    def add_fields(self, fields: Fields) -> None:
        """Add the options of a dataclass of settings."""
        for option in fields.options():
            self.add(*option)

    def add_function(self, function: Callable[..., Any], *, first: bool) -> _Reader:
        """Add the options of a function; they make its partial application."""
        sentences, hints, reads = arguments_of(function), _hints(function), dict[str, _Reader]()
        parameters = inspect.signature(function).parameters
        always = {name for name, parameter in parameters.items() if parameter.default is None}
        further = [name for name, parameter in parameters.items() if parameter.kind is inspect.Parameter.VAR_KEYWORD]
        named = re.compile(rf"`({'|'.join(name for name in parameters if '_' in name) or '_'})`")
        for name, parameter in parameters.items():
            if self._flags.get(name, "") is not None:
                about = named.sub(lambda match: f"`--{match[1].replace('_', '-')}`", sentences.get(name, ""))
                reads[name] = self._add_parameter(parameter, hints[name], about, first=first)

        def bind(given: Mapping[str, Any]) -> functools.partial[Any]:
            values = {name: read(given) for name, read in reads.items()}
            values = {name: value for name, value in values.items() if value is not None or name in always}
            for name in further:
                values |= values.pop(name, {})
            return functools.partial(function, **values)

        return bind

    def _add_parameter(self, parameter: inspect.Parameter, hint: Any, sentence: str, *, first: bool) -> _Reader:
        row = self._flags.get(parameter.name)
        settings = [each for each in _members(hint) if isinstance(each, type) and dataclasses.is_dataclass(each)]
        if row is None and _is_model(hint):
            row = MODEL
        elif row is None and settings:
            row = Fields(settings[0], defaults=True)
        if isinstance(row, Fields):
            self.add_fields(row)
            return row.changes if parameter.kind is inspect.Parameter.VAR_KEYWORD else row.read
        flag = row if isinstance(row, Flag) else Flag(row or "")
        annotation = flag.type or _option_type(hint)
        if annotation is None or not (flag.help or sentence):
            missing = "type of an option" if annotation is None else "sentence in Args"
            raise TypeError(f"parameter {parameter.name} has no {missing}; say more in `flags`")
        default = parameter.default
        if flag.required:
            default = parameter.empty
        elif default == () or (default is parameter.empty and (not first or NoneType in get_args(flag.type))):
            default = None
        if default is None:
            annotation |= None
        option = _option(parameter.name, default, flag, sentence)
        read = self.add(parameter.name, Annotated[annotation, option], default)
        value = flag.read or (_choices if _is_model(hint) else None)
        return read if value is None else lambda given: value(read(given))


def _option(name: str, default: Any, flag: Flag, sentence: str) -> Any:
    details: dict[str, Any] = {"help": (flag.help or sentence) + (added_to(flag.added) if flag.added else "")}
    details |= {"min": flag.min, "max": flag.max, "rich_help_panel": flag.panel}
    names = flag.names.split()
    if not flag.names.startswith("-") and (names or default is inspect.Parameter.empty):
        return typer.Argument(**details, metavar=(flag.metavar or flag.names or name.upper()).strip("[]."))
    if not names and default is False:
        names = [f"--{name.replace('_', '-')}"]  # no --no-name beside it
    return typer.Option(*names, **details, metavar=flag.metavar)


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
    names = [getattr(member, "__name__", "") for each in (hint, *inner) for member in _members(each)]
    return bool({"Model", Choice.__name__} & set(names))


def _is_sequence(hint: Any) -> bool:
    return get_origin(hint) in (list, tuple, Sequence, Iterable, Collection)


def _option_type(hint: Any) -> Any:
    """Return what the command line parses for a type: the first member of a union that can be typed; None: nothing."""
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
    text = _SECTION.split(inspect.getdoc(functions[0]) or "")[0].replace("``", "`") if functions else ""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def arguments_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return the sentences of ``Args:`` by parameter.

    Example:
        >>> arguments_of(command_of)["functions"]
        'Functions with a Google-style docstring.'
    """
    _, _, rest = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    entries = re.finditer(r"^ {4}\**(\w+): (.*(?:\n {8}.*)*)", _SECTION.split(rest)[0], re.MULTILINE)
    return {entry[1]: " ".join(entry[2].split()).replace("``", "`") for entry in entries}
