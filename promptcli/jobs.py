"""A job holds the arguments of a command and its function of the library, as one frozen dataclass.

A field says all there is to say about one argument: its type, default, help, bounds, and how it is
typed on the command line. The command line makes its options of the fields
(``cli/job_options.py``), the library its function (``function_of``).
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields, replace
from typing import Any, ClassVar, Generic, ParamSpec, Self, TypeVar

from promptcli.errors import unknown
from promptcli.settings import check_bounds

Result = TypeVar("Result", covariant=True)
Done = TypeVar("Done")
Parameters = ParamSpec("Parameters")


class Job(Generic[Result]):
    """The base of jobs, which are frozen dataclasses."""

    #: the field that takes further keywords of the function: settings, or a mapping of them
    further: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_bounds(self)

    def with_further(self, changes: Mapping[str, Any]) -> Self:
        """Return the job with changes of single values of the field ``further``."""
        before: Any = getattr(self, self.further)
        if isinstance(before, Mapping):
            after: Any = {**before, **changes}
        else:
            after = before.replace(**changes)
        return replace(self, **{self.further: after})  # type: ignore[type-var]

    def run(self) -> Result:
        """Do what is asked for."""
        raise NotImplementedError


def fields_of(job: type) -> "tuple[Field[Any], ...]":
    """Return the fields of a job's class, a dataclass, those that only have a keyword last."""
    return tuple(sorted(fields(job), key=lambda item: bool(item.kw_only)))


def argument(about: str, default: Any = ..., **metadata: Any) -> Any:
    """Return the field of an argument, which the command line takes without an option's name.

    The rest is as for ``option``; ``metavar`` is the word for it in the help: ``FILE...``.
    """
    return _field(about, default, {"is_argument": True, **metadata})


def option(default: Any, about: str, **metadata: Any) -> Any:
    """Return the field of an option; ``about`` is its help, ``...`` the default of one that must be
    given.

    Metadata, all optional: ``min``, ``max``, ``above``, ``below`` and ``choices`` bound its values;
    ``names`` are what is typed if not the field's own, without dashes: ``output o``; ``metavar``
    and ``panel`` are shown in the help; ``typed`` is the type on the command line if it is narrower
    than in the library, ``kind`` the row of ``FIELD_READERS`` (``cli/job_options.py``) that reads
    it; ``settings_of`` is the dataclass whose fields describe a mapping, of which those of
    ``only`` have an option each; ``required`` holds on the command line only; ``in_python`` and
    ``on_command_line``, which may be a function, add to the help of the one; ``hidden`` keeps the
    field off the command line.
    """
    return _field(about, default, metadata)


def _field(about: str, default: Any, metadata: dict[str, Any]) -> Any:
    if isinstance(default, list | dict):
        made = default
        return field(default_factory=made.copy, metadata={"help": about, **metadata})
    if default is ...:
        return field(metadata={"help": about, **metadata})
    return field(default=default, metadata={"help": about, **metadata})


def function_of(job: Callable[Parameters, Job[Result]], name: str) -> Callable[Parameters, Result]:
    """Return the function of the library that runs a job, called with the job's fields.

    Its docstring is that of the job, with the help of the fields as ``Args:``. An unknown keyword
    is a ``UsageError``, unless the job takes further ones.
    """

    def run(asked: Job[Result]) -> Result:
        return asked.run()

    run.__doc__ = job.__doc__
    return function_with(job, name, run)


def function_with(
    job: Callable[Parameters, Job[Any]], name: str, work: Callable[[Any], Done]
) -> Callable[Parameters, Done]:
    """Return a function that does other work with a job, as ``function_of`` runs it; its docstring
    is that of the work.
    """
    assert isinstance(job, type) and issubclass(job, Job)
    named = [item.name for item in fields_of(job)]

    def call(*args: Any, **options: Any) -> Any:
        others = {key: options.pop(key) for key in [*options] if key not in named}
        if others and not job.further:
            raise unknown(f"argument of {name}", next(iter(others)), named)
        asked = job(*args, **options)
        if others:
            asked = asked.with_further(others)
        return work(asked)

    call.__module__ = job.__module__
    call.__name__ = call.__qualname__ = name
    call.__doc__ = _docstring(work, job)
    call.__signature__ = inspect.signature(job)  # type: ignore[attr-defined]
    return call


def _docstring(described: Any, job: type) -> str:
    """Return a docstring with the help of a job's fields as ``Args:`` behind its prose."""
    text = inspect.getdoc(described) or ""
    prose, *sections = re.split(r"\n(?=(?:Returns|Raises|Example):\n)", text, maxsplit=1)
    lines = [f"    {item.name}: {_help_in_python(item)}" for item in fields_of(job)]
    return "\n".join([prose.rstrip(), "", "Args:", *lines, "", *sections])


def _help_in_python(item: "Field[Any]") -> str:
    text = str(item.metadata["help"])
    if more := item.metadata.get("in_python"):
        text += f" {more}"
    return text.replace("`", "``")
