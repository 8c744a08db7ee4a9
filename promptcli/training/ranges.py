"""Ranges of settings that a search draws from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcli.errors import UsageError


@dataclass(frozen=True)
class Range:
    """The numbers from ``low`` to ``high``; with ``log`` every order of magnitude is as likely.

    Example:
        >>> Range.of("1e-5..1e-4:log")
        Range(low=1e-05, high=0.0001, log=True)
    """

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise UsageError(
                f"range {self.low:g}..{self.high:g}: its ends are swapped; give"
                f" {self.high:g}..{self.low:g}"
            )
        if self.low == self.high:
            raise UsageError(f"range {self.low:g}..{self.high:g} is one value; give another end")
        if self.log and self.low <= 0:
            raise UsageError(
                f"range {self.low:g}..{self.high:g}:log begins at {self.low:g}; a logarithm needs"
                " an end above 0"
            )

    @classmethod
    def of(cls, written: str) -> "Range":
        """Return the range that is written as ``LOW..HIGH`` or ``LOW..HIGH:log``."""
        ends, _, scale = written.partition(":")
        low, _, high = ends.partition("..")
        try:
            return cls(_number(low), _number(high), {"": False, "log": True}[scale])
        except (ValueError, KeyError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                f"range {written!r} is not allowed; give LOW..HIGH or LOW..HIGH:log, e.g."
                " 1e-5..1e-4:log"
            ) from None

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}" + (":log" if self.log else "")


def _number(text: str) -> float:
    """Return a number, an integer if it is written as one."""
    try:
        return int(text)
    except ValueError:
        return float(text)


#: Setting -> what a search draws from: a range, or values.
Space = Mapping[str, Range | Sequence[Any]]
