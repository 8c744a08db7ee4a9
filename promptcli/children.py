"""Child Python processes; they import nothing from the current folder or a model's folder."""

import contextlib
import os
import sys
from collections.abc import Iterator


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of the package in a new interpreter.

    Without ``-P`` the current folder comes first where ``-m`` and ``-c`` look for modules, Python's
    own and torch too.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables in the block, for the processes started there."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Start the block's processes with ``-P``, even if a library writes their command lines:
    multiprocessing's begin with ``-c``.

    They get the module path of this process once they have started, so that a script's own modules
    are found.
    """
    with environment(PYTHONSAFEPATH="1"):
        yield
