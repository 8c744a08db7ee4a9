"""Python files with the names of modules that every process imports: whoever imports one leaves a
file behind.
"""

import sys
from pathlib import Path

_LIBRARIES = ("torch", "numpy", "safetensors", "typer", "rich", "msgspec", "promptcli")


def write_traps(folder: Path) -> None:
    """Write a file for each module of Python's library and some others."""
    for name in (*sys.stdlib_module_names, *_LIBRARIES):
        code = f"open({str(folder / f'IMPORTED-{name}')!r}, 'w')\n"
        (folder / f"{name}.py").write_text(code, encoding="utf-8")


def imported_traps(folder: Path) -> list[str]:
    """Return the modules that were imported from the folder."""
    return sorted(path.name.partition("-")[2] for path in folder.glob("IMPORTED-*"))
