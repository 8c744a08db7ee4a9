"""How many processes of a run there are: ``accelerate launch`` and ``torchrun`` tell each by its
environment.
"""

from collections.abc import Mapping


def number_of_processes(environ: Mapping[str, str]) -> int:
    """Return how many processes were started together; 1: this one is alone.

    A launcher's variables stay behind in interactive shells and batch jobs; a process that has only
    some of them is alone.
    """
    number = environ.get("WORLD_SIZE", "")
    is_complete = environ.get("RANK") and environ.get("MASTER_ADDR")
    return max(1, int(number)) if is_complete and number.isdecimal() else 1
