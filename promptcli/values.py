"""Small frozen values, as ``dataclasses`` makes them, without its cost.

``dataclasses`` writes and compiles the methods of each class, half a millisecond a class, for which
every command would wait. These classes share theirs.
"""

from typing import Any, TypeVar, dataclass_transform

Made = TypeVar("Made")
_FIELDS = "_value_fields"


@dataclass_transform(frozen_default=True)
def value(cls: type[Made]) -> type[Made]:
    """Make a class a frozen value of its annotated fields: equal if they are."""
    names = dict.fromkeys(getattr(cls, _FIELDS, ()))
    names |= dict.fromkeys(cls.__annotations__)
    setattr(cls, _FIELDS, tuple(names))
    for name, method in _METHODS.items():
        setattr(cls, name, method)
    return cls


def with_fields(instance: Made, **changes: Any) -> Made:
    """Return a value with other contents in some fields."""
    return type(instance)(**{**_contents(instance), **changes})


def _contents(instance: object) -> dict[str, Any]:
    return {name: getattr(instance, name) for name in getattr(type(instance), _FIELDS)}


def _init(self: object, *contents: Any, **named: Any) -> None:
    names = getattr(type(self), _FIELDS)
    values = {**dict(zip(names, contents, strict=False)), **named}
    missing = [name for name in names if name not in values and not hasattr(type(self), name)]
    if missing or len(contents) > len(names) or not values.keys() <= set(names):
        raise TypeError(f"{type(self).__name__} takes {', '.join(names)}")
    vars(self).update({name: values.get(name, getattr(type(self), name, None)) for name in names})


def _repr(self: object) -> str:
    shown = ", ".join(f"{name}={content!r}" for name, content in _contents(self).items())
    return f"{type(self).__name__}({shown})"


def _equal(self: object, other: object) -> bool:
    return type(self) is type(other) and _contents(self) == _contents(other)


def _hash(self: object) -> int:
    return hash((type(self), *_contents(self).values()))


def _frozen(self: object, name: str, content: object = None) -> None:
    raise AttributeError(f"{type(self).__name__} is frozen: its {name} cannot be changed")


_METHODS = {
    "__init__": _init,
    "__repr__": _repr,
    "__eq__": _equal,
    "__hash__": _hash,
    "__setattr__": _frozen,
    "__delattr__": _frozen,
}
