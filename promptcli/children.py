"""Child processes that run Python, but import nothing from the current folder or a model's."""

import contextlib
import os
import sys
from collections.abc import Iterator


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module of the package in a new interpreter.

    Without ``-P``, the current folder would come first for all imports, even for Python's own
    modules.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set environment variables for the processes that the block starts."""
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
    """Start the block's processes as with ``-P``, even if a library such as multiprocessing writes
    their command lines.

    A process gets the module path of this process when it has started, so that it finds the modules
    of a user's script.
    """
    with environment(PYTHONSAFEPATH="1"):
        yield
