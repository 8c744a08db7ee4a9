"""Entry point of ``promptcli`` and ``python -m promptcli``."""

import contextlib
import gc
import os
import sys

#: Turns that a waiting OpenMP thread spins before it sleeps. OpenMP's default of 300,000 occupies
#: the core of the very thread that the others wait for.
SPINS = "1000"
#: Environment variables by which a user sets how threads wait.
_WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def main() -> None:
    """Run the command line; always ends in ``SystemExit`` with a documented code."""
    # ``python -m`` would import from the current folder first; only promptcli itself may be there
    own_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with contextlib.suppress(OSError):  # the current folder may be deleted
        if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()] != [own_folder]:
            del sys.path[0]
    if not any(name in os.environ for name in _WAITING):  # torch reads it when it loads
        os.environ["GOMP_SPINCOUNT"] = SPINS
    # a tokenizer makes millions of lists; with Python's thresholds, a fifth of the time is lost
    gc.set_threshold(50_000, 20, 20)
    try:
        from promptcli.children import safe_path
        from promptcli.cli.command_line import main as run
    except KeyboardInterrupt:  # the command line does not answer signals yet
        sys.stderr.write("promptcli: interrupted; nothing was changed\n")
        sys.exit(130)
    with safe_path():
        run()


if __name__ == "__main__":
    main()
