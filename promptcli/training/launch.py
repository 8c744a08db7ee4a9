"""The other processes of a run, read from the environment: ``accelerate launch``, ``torchrun``
and MPI set it.

A launcher's variables stay behind in interactive shells and batch jobs; a process that has only
some of them is alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from promptcli.errors import UsageError

#: The variables of each launcher: the number of processes, that of this one, from 0, and the same
#: on its machine.
_FAMILIES = (
    ("WORLD_SIZE", "RANK", "LOCAL_RANK"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK"),
)
_ADDRESS = "MASTER_ADDR"
_PORT = "MASTER_PORT"


@dataclass(frozen=True)
class Launch:
    """The processes that this one was started with."""

    number: int = 1
    index: int = 0
    address: str = ""  #: their common address
    left_behind: str = ""  #: the variable that tells of others, without what is needed to find them


def read_launch(environ: Mapping[str, str]) -> Launch:
    """Return the processes that the environment declares; refuse values that are not numbers."""
    for size, rank, local_rank in _FAMILIES:
        number = _number(size, environ)
        if number < 2:
            continue
        if not environ.get(rank) or not environ.get(_ADDRESS):
            return Launch(left_behind=f"{size}={number}")
        index, *_ = (_number(name, environ) for name in (rank, local_rank, _PORT))
        if index >= number:
            raise UsageError(f"{rank}={index} is no process of {size}={number}; {_unset(rank)}")
        return Launch(number, index, f"{environ[_ADDRESS]}:{environ.get(_PORT, '29500')}")
    return Launch()


def _number(name: str, environ: Mapping[str, str]) -> int:
    value = environ.get(name) or "0"
    if not (value.isascii() and value.isdigit()):
        raise UsageError(
            f"the variable {name} is {value!r}, not a number of processes or a port; {_unset(name)}"
        )
    return int(value)


def _unset(name: str) -> str:
    return (
        f"start with `accelerate launch` or `torchrun`, or without it: env -u {name} promptcli"
        " train ..."
    )
