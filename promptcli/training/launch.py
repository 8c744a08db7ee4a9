"""The number of processes of a run, from the environment that ``accelerate launch`` or ``torchrun``
sets.
"""

from collections.abc import Mapping


def number_of_processes(environ: Mapping[str, str]) -> int:
    """Return how many processes were started together; 1: this process is alone.

    A launcher's variables may remain in interactive shells and batch jobs; a process with only some
    of them is alone.
    """
    number = environ.get("WORLD_SIZE", "")
    is_complete = environ.get("RANK") and environ.get("MASTER_ADDR")
    return max(1, int(number)) if is_complete and number.isdecimal() else 1
