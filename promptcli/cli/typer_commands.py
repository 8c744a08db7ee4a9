"""A command as Typer takes it, from a function whose parameters are jobs and groups of options.

cli/commands/models.py shows such functions.
"""

import dataclasses
import functools
import inspect
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, get_args, get_origin

from promptcli.cli.job_options import JobOptions, hints_of
from promptcli.cli.options import Given, SettingOptions
from promptcli.jobs import Job

#: Makes the value of a parameter from the values of all options.
_Reader = Callable[[Mapping[str, Any]], Any]


def typer_command(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option in its signature for each field of its jobs and groups.

    An option that two parameters have is offered once. The help is the docstring of the command,
    or that of its job.
    """
    options = dict[str, inspect.Parameter]()
    reads = dict[str, _Reader]()
    described: Any = command
    hints = hints_of(command)
    for name, parameter in inspect.signature(command).parameters.items():
        hint = hints[name]
        if is_job(hint) and command.__doc__ is None:
            described = hint
        added, reads[name] = _options_of(parameter.replace(annotation=hint))
        for option in added:
            options.setdefault(option.name, option)

    def call(**arguments: Any) -> None:
        return command(**{name: read(arguments) for name, read in reads.items()})

    call.__name__ = command.__name__
    call.__doc__ = prose(described)
    call.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {option.name: option.annotation for option in options.values()}
    return call


def _options_of(parameter: inspect.Parameter) -> tuple[Iterable[inspect.Parameter], _Reader]:
    """Return the options of a parameter, and the function that makes its value of theirs."""
    hint = parameter.annotation
    group = _group_of(hint)
    if isinstance(group, SettingOptions) and get_args(hint)[0] is Given:
        return group.options(), functools.partial(Given, group)
    if group is not None:
        return group.options(), group.changes
    if is_job(hint):
        job = JobOptions(hint)
        return job.options(), job.read
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        settings = SettingOptions(hint, defaults=True)
        return settings.options(), settings.read
    option = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    return [option], operator.itemgetter(parameter.name)


def is_job(hint: Any) -> bool:
    """Return whether a type is that of a job."""
    return isinstance(hint, type) and issubclass(hint, Job)


def _group_of(hint: Any) -> SettingOptions | JobOptions | None:
    """Return the options of a parameter: ``RecipeChanges``, fields of another job."""
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


_SECTION = re.compile(r"^(?:Returns|Yields|Raises|Examples?):$", re.MULTILINE)


def prose(described: Any) -> str:
    """Return a docstring up to its sections, a paragraph a line."""
    text = _SECTION.split(inspect.getdoc(described) or "")[0].replace("``", "`")
    paragraphs = text.strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
