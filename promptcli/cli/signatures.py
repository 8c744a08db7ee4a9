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
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from promptcli.cli.jobs import JobOptions
from promptcli.cli.options import MODEL, Given, SettingOptions, choice_of, data_folder
from promptcli.cli.options import Flag as Flag  # for the commands
from promptcli.jobs import Job
from promptcli.recipe import Choice

Show = TypeVar("Show", bound=Callable[..., None])
#: Makes the value of a parameter from the values of all options.
_Reader = Callable[[Mapping[str, Any]], Any]


#: A flag, or only its names; a group of options in place of the parameter; None: not offered.
FlagRow = Flag | str | SettingOptions | None
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
        show.functions = functions  # type: ignore[attr-defined]
        show.flags = flags or {}  # type: ignore[attr-defined]
        return show

    return mark


def is_expanded(command: Callable[..., None]) -> bool:
    """Return whether a command is marked by ``command_of``; another has its options in its
    signature.
    """
    return hasattr(command, "functions") or job_of(command) is not None


def job_of(command: Callable[..., None]) -> type[Job[Any]] | None:
    """Return the job that a command runs."""
    for hint in _hints(command).values():
        if isinstance(hint, type) and issubclass(hint, Job):
            return hint
    return None


def expand(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command as Typer takes it: library functions and groups of settings are replaced by
    their options.
    """
    flags = _COMMON | getattr(command, "flags", {})
    functions = getattr(command, "functions", ())
    options = dict[str, inspect.Parameter]()
    reads = dict[str, _Reader]()
    waiting = iter(functions)
    hints = _hints(command)
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        if (get_origin(hint) or hint) is functools.partial:
            added, reads[name] = _of_function(next(waiting), flags, first=not options)
        elif group := _group_of(hint):
            added = list(group.options())
            reads[name] = group.changes
            if get_args(hint)[0] is Given and isinstance(group, SettingOptions):
                reads[name] = functools.partial(Given, group)
        elif isinstance(hint, type) and issubclass(hint, Job):
            job = JobOptions(hint)
            added = list(job.options())
            reads[name] = job.read
        elif isinstance(hint, type) and dataclasses.is_dataclass(hint):
            group = SettingOptions(hint, defaults=True)
            added = list(group.options())
            reads[name] = group.read
        else:
            added = [parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)]
            reads[name] = operator.itemgetter(name)
        for option in added:
            options.setdefault(option.name, option)

    def call(**given: Any) -> None:
        return command(**{name: read(given) for name, read in reads.items()})

    call.__name__ = command.__name__
    described = functions or tuple(filter(None, [job_of(command)]))
    call.__doc__ = prose(*described) if command.__doc__ is None else prose(command)
    call.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in options.values()}
    return call


def _group_of(hint: Any) -> SettingOptions | JobOptions | None:
    """Return the options that stand for a parameter: ``RecipeChanges``, fields of another job."""
    if get_origin(hint) is not Annotated:
        return None
    kind = get_args(hint)[0]
    if kind is not Given and get_origin(kind) is not dict:
        return None
    return next(item for item in get_args(hint) if isinstance(item, SettingOptions | JobOptions))


def fields_by_set(command: Callable[..., None]) -> list[str]:
    """Return the fields that ``--set`` of a command takes: its annotation holds their group."""
    option = inspect.signature(command).parameters.get("set")
    if option is None:
        return []
    for detail in get_args(option.annotation):
        if isinstance(detail, SettingOptions):
            return detail.fields_by_set()
    return []


def _of_function(
    function: Callable[..., Any], flags: Mapping[str, FlagRow], *, first: bool
) -> tuple[list[inspect.Parameter], _Reader]:
    """Return the options of a function, and what makes its partial application of their values."""
    helps = help_of(function)
    hints = _hints(function)
    parameters = inspect.signature(function).parameters
    options = list[inspect.Parameter]()
    reads = dict[str, _Reader]()
    for name, parameter in parameters.items():
        if flags.get(name, "") is not None:
            added, reads[name] = _of_parameter(
                parameter, hints[name], flags.get(name), helps.get(name, ""), first=first
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
    settings = [member for member in _members(hint) if _is_settings(member)]
    if row is None and _is_model(hint):
        row = MODEL
    elif row is None and settings:
        row = SettingOptions(settings[0], defaults=True)
    if isinstance(row, SettingOptions):
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            return list(row.options()), row.changes
        return list(row.options()), row.read
    flag = Flag(row or "") if not isinstance(row, Flag) else row
    annotation = flag.type or _option_type(hint)
    name = parameter.name
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
    value = flag.read
    if value is None and _is_model(hint):
        value = _choices
    elif value is None:
        value = _as_given
    return [flag.option(name, annotation, default, sentence)], lambda given: value(given[name])


def _choices(names: str | list[str] | None) -> Any:
    if isinstance(names, list):
        return [choice_of(name) for name in names]
    return choice_of(names)


def _as_given(value: Any) -> Any:
    return value


def _is_settings(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


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
    kinds = list(_members(hint))
    for member in _members(hint):
        if _is_sequence(member):
            kinds += _members(get_args(member)[0])
    return any(getattr(kind, "__name__", "") in ("Model", Choice.__name__) for kind in kinds)


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
            if _is_model(member):
                return list[str]
            inner = _option_type(get_args(member)[0])
            return None if inner is None else list[inner]  # type: ignore[valid-type]
    return str if _is_model(hint) else None


_SECTION = re.compile(r"^(?:Args|Returns|Yields|Raises|Examples?|Attributes):$", re.MULTILINE)


def prose(*functions: Callable[..., Any]) -> str:
    """Return the docstring of the first function up to its sections, a paragraph a line."""
    if not functions:
        return ""
    text = _SECTION.split(inspect.getdoc(functions[0]) or "")[0].replace("``", "`")
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(_for_users(" ".join(paragraph.split())) for paragraph in paragraphs)


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


def help_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return each parameter's help: its sentences in ``Args:``, with options for parameters."""
    helps = {}
    for name, sentences in arguments_of(function).items():
        text = _for_users(sentences)
        for parameter in inspect.signature(function).parameters:
            if "_" in parameter:
                text = text.replace(f"`{parameter}`", f"`--{parameter.replace('_', '-')}`")
        helps[name] = text
    return helps


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
