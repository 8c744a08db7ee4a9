"""The table of trackers, which ``report_to`` names."""

from collections.abc import Callable, Sequence

from promptcli.extensions import Table
from promptcli.training.watching import Watcher

#: Name of a tracker -> the function that makes one, or raises a ``UsageError`` if it cannot.
TRACKERS: Table[Callable[[], Watcher]] = Table("trackers", {})


def make_trackers(names: Sequence[str]) -> list[Watcher]:
    """Return trackers by their names, each once.

    Raises:
        UsageError: One that is unknown, not installed, or forbidden by ``offline``.
    """
    return [TRACKERS.find("tracker", name)() for name in dict.fromkeys(names)]
