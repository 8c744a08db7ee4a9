"""Entry point of ``promptcli`` and ``python -m promptcli``."""

import contextlib
import gc
import os
import sys

#: Turns that a waiting OpenMP thread spins before it sleeps. OpenMP's default of 300,000 occupies
#: the core of the very thread that the others wait for.
SPINS = "1000"
#: Environment variables that set how threads wait.
_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def _forget_current_folder() -> None:
    """Import nothing more from the current folder, which ``python -m`` puts first, unless promptcli
    itself is in it.
    """
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with contextlib.suppress(OSError):  # the current folder may be deleted
        if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()] != [ours]:
            del sys.path[0]


def main() -> None:
    """Run the command line; always ends in ``SystemExit`` with a documented code."""
    _forget_current_folder()
    if not any(name in os.environ for name in _WAITING):  # before torch loads
        os.environ["GOMP_SPINCOUNT"] = SPINS
    # tokens are millions of lists: Python's thresholds cost a fifth of the time
    gc.set_threshold(50_000, 20, 20)
    try:
        from promptcli.children import safe_path
        from promptcli.cli.command_line import main as run
    except KeyboardInterrupt:  # before the command line itself answers signals
        sys.stderr.write("promptcli: interrupted; nothing was changed\n")
        sys.exit(130)
    with safe_path():
        run()


if __name__ == "__main__":
    main()
