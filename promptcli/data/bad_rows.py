"""Rows of files that cannot be read: refused, or left out, counted, and told with their reasons."""

from promptcli.errors import UsageError, counted
from promptcli.notes import note


class BadRows:
    """What is done with the rows of a file that cannot be read: the first is refused, or all are
    skipped; None: refused where the user cannot choose.
    """

    def __init__(self, skip: bool | None = None, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self.skips = bool(skip)
        self._hint = "; skip-bad leaves such rows out" if skip is not None else ""
        self.count = 0
        self._reasons = list[str]()

    def add(self, name: str, kind: str, number: int, reason: str, *, parameter: str = "") -> None:
        """Take a row of the file ``name``; ``number`` counts its lines or rows (``kind``)."""
        told = f"{kind} {number}: {reason}"
        if not self.skips:
            raise UsageError(f"{name}: {told}{self._hint}", parameter=parameter)
        if self.count < 3:
            self._reasons.append(told)
        self.count += 1

    def forget(self) -> None:
        """Begin again: the file is read once more."""
        self.count = 0
        self._reasons.clear()

    def tell(self, name: str, done: str = "left out") -> None:
        """Say how many rows were skipped, and why the first three."""
        if self.count and not self._quiet:
            rows = counted(self.count, "row")
            more = "; ..." if self.count > 3 else ""
            note(f"{name}: {done} {rows} that cannot be read: {'; '.join(self._reasons)}{more}")


REFUSED = BadRows()
