"""The options of a command, made of the fields of its job (``promptcli/jobs.py``)."""

import builtins
import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from promptcli.cli.options import (
    MODEL,
    RECIPE,
    Flag,
    SettingOptions,
    choice_of,
    data_folder,
    default_backbone,
    inclusive_bounds,
    parse_pairs,
    written_name,
)
from promptcli.jobs import Job, fields_of
from promptcli.recipe import Choice


def _backbone_choice(name: str | None) -> Choice:
    return choice_of(name or default_backbone())


def _file_or_stream(name: str) -> Any:
    return sys.stdin.buffer if name == "-" else name


def _settings_of_trained_rows(pairs: Sequence[str] | None) -> dict[str, Any]:
    if not pairs:
        return {}
    from promptcli.training.methods import setting_types

    kinds = setting_types()
    for name in ("seed", "template"):  # `seeds` decides, and the row
        del kinds[name]
    return parse_pairs(kinds, pairs)


#: Kind of a field (its metadata's ``kind``) -> how a value is read, or the options that stand for
#: the field.
FIELD_READERS: dict[str, Callable[[Any], Any] | SettingOptions] = {
    "model": MODEL,
    "recipe": RECIPE,
    "named model": choice_of,
    "backbone": _backbone_choice,
    "data folder": data_folder,
    "file or stream": _file_or_stream,
    "settings of trained rows": _settings_of_trained_rows,
}


class JobOptions:
    """The options of a job, and the job of their values; or, with ``only``, those of some fields
    and what was given of them.
    """

    def __init__(self, described: type[Job[Any]], only: Sequence[str] = ()) -> None:
        self.described = described
        self.only = only
        for item in fields_of(described):
            if "help" not in item.metadata:
                raise TypeError(f"field {item.name} has no help; give it by option or argument")
        self.hints = hints_of(described)

    def options(self) -> Iterator[inspect.Parameter]:
        """Yield every option, in the order of the fields."""
        for item in self._offered_fields():
            group = self._group(item)
            if group is not None:
                yield from group.options()
                continue
            about = item.metadata
            flag = Flag(
                self._spelling(item),
                **inclusive_bounds(about),
                metavar=about.get("metavar"),
                panel=about.get("panel"),
            )
            yield flag.option(
                item.name, self._option_type(item), self._default(item), self._help(item)
            )

    def read(self, arguments: Mapping[str, Any]) -> Job[Any]:
        """Return the job that the values of a command's options describe."""
        return self.described(**self.changes(arguments))

    def changes(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the fields that are not left to their defaults."""
        values = {}
        for item in self._offered_fields():
            group = self._group(item)
            kind = item.metadata.get("kind")
            if isinstance(group, SettingOptions):
                is_model = kind == "model" or dataclasses.is_dataclass(self.hints[item.name])
                values[item.name] = group.read(arguments) if is_model else group.changes(arguments)
                continue
            value = arguments[item.name]
            if isinstance(value, list):
                value = tuple(value)
            if value is None and (self.only or item.default is not None):
                continue  # the job's own default
            reader = FIELD_READERS.get(item.metadata.get("kind", ""))
            values[item.name] = reader(value) if callable(reader) else value
        return values

    def typed_values(self, job: Job[Any]) -> dict[str, Any]:
        """Return the values of a job by the names of their options, without dashes."""
        named = {}
        for item in self._offered_fields():
            if not item.metadata.get("is_argument"):
                name = (self._spelling(item) or f"--{written_name(item.name)}").split()[0]
                named[name.removeprefix("--")] = getattr(job, item.name)
        return named

    def _offered_fields(self) -> list[Any]:
        fields = fields_of(self.described)
        if self.only:
            return [item for item in fields if item.name in self.only]
        return [item for item in fields if not item.metadata.get("hidden")]

    def _group(self, item: Any) -> SettingOptions | None:
        """Return the options that replace a field."""
        about = item.metadata
        kind = about.get("kind")
        if kind is not None and kind not in FIELD_READERS:
            raise TypeError(f"field {item.name}: no kind {kind!r}; {', '.join(FIELD_READERS)}")
        group = FIELD_READERS.get(kind or "")
        if group is MODEL:
            return MODEL.with_default(item.default)
        if isinstance(group, SettingOptions):
            return group
        if "settings_of" in about:
            return SettingOptions(
                about["settings_of"], about.get("panel"), only=about["only"], defaults=True
            )
        hint = self.hints[item.name]
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return SettingOptions(hint, defaults=True)
        return None

    def _spelling(self, item: Any) -> str:
        """Return how a field is given: ``--output -o``, or an argument's metavar."""
        about = item.metadata
        if about.get("is_argument"):
            return str(about.get("metavar") or item.name.upper())
        is_pair = item.default is True or self.hints[item.name] == bool | None
        if is_pair and "names" not in about:
            return ""  # --name and --no-name
        names = str(about.get("names", written_name(item.name))).split()
        return " ".join(f"-{name}" if len(name) == 1 else f"--{name}" for name in names)

    def _option_type(self, item: Any) -> Any:
        typed = item.metadata.get("typed") or option_type(self.hints[item.name])
        if typed is None:
            raise TypeError(f"field {item.name} has no type of an option; give `typed`")
        return typed

    def _default(self, item: Any) -> Any:
        if self.only:
            return None
        if item.metadata.get("required"):
            return inspect.Parameter.empty
        if item.default is not dataclasses.MISSING:
            return None if item.default == () else item.default
        if item.default_factory is not dataclasses.MISSING:
            return None
        return inspect.Parameter.empty

    def _help(self, item: Any) -> str:
        """Return the help, in which other fields are called by their options."""
        more = item.metadata.get("on_command_line", "")
        if callable(more):
            more = more()
        text = " ".join(filter(None, [item.metadata["help"], more]))
        for other in fields_of(self.described):
            if not other.metadata.get("is_argument"):
                name = (self._spelling(other) or f"--{written_name(other.name)}").split()[0]
                text = text.replace(f"`{other.name}`", f"`{name}`")
        return text


# --- types of options ---


class _StandIn(type):
    """Type of the classes in place of what is imported for type checking only: ``Encoder``, or
    ``loading.Sentences`` of a module.
    """

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _StandIn(name, (), {})

    def __getitem__(cls, item: Any) -> None:
        return None


class _Names(dict[str, Any]):
    """Names of a module; a name imported only for type checking becomes a class of that name."""

    def __missing__(self, name: str) -> Any:
        if name.startswith("__"):
            raise KeyError(name)
        return getattr(builtins, name, None) or _StandIn(name, (), {})


def hints_of(described: Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, or of a function's parameters, those that are
    written as text too.
    """
    names = _Names(vars(sys.modules[described.__module__]))
    return get_type_hints(described, localns=names, include_extras=True)


def option_type(hint: Any) -> Any:
    """Return what the command line parses for a type: the first member of a union that can be
    typed; None: nothing.
    """
    for member in _members(hint):
        if member in (bool, int, float, str, Path) or get_origin(member) is Literal:
            return member
        if get_origin(member) in (list, tuple, Sequence, Iterable, Collection):
            inner = option_type(get_args(member)[0])
            return None if inner is None else list[inner]  # type: ignore[valid-type]
    return None


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the only one, without None."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(member for member in members if member is not NoneType)
