"""The program, ``promptcli`` or ``python -m promptcli``."""

import gc
import os
import sys


def _open_closed_streams() -> None:
    """Open a closed stdout or stderr, else the next file opened would be taken for it: writing to the first fails."""
    for number, name, mode in ((1, "stdout", os.O_RDONLY), (2, "stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, mode), number)
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))


def main() -> None:
    """Run the command line; always ends in ``SystemExit`` with a documented code."""
    _open_closed_streams()
    gc.set_threshold(50_000, 20, 20)  # tokens are millions of lists: Python's thresholds cost a fifth of the time
    from promptcli.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
