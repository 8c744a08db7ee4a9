"""Processes of one run: each takes a share of every batch, all see every negative (`accelerate launch`, `torchrun`).

Every process computes the loss of the whole batch; only its own vectors carry gradient. The sum of the processes'
gradients is then the gradient that one process would have.
"""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.tracking import get_available_trackers
from torch import Tensor, nn

from promptcli.errors import UsageError
from promptcli.notes import is_offline

#: Trackers that only write files.
_LOCAL_TRACKERS = ("tensorboard", "aim", "dvclive")
_TRACKERS = "trackers"


class Processes:
    """The processes of a run; one, usually."""

    def __init__(self, accelerator: Accelerator, *, device: str = "cpu", halves: bool = False) -> None:
        self.accelerator = accelerator  #: of this process; knows the others, and the trackers
        self.device = device  #: where this process computes
        self.halves = halves  #: products are in bfloat16; weights and optimiser stay float32
        self.number = accelerator.num_processes
        self.index = accelerator.process_index
        self.is_main = accelerator.is_main_process

    def check(self, lengths: Sequence[int]) -> None:
        """Refuse batches, of an epoch's ``lengths``, that have fewer examples than there are processes.

        Raises:
            UsageError: There is one.
        """
        if min(lengths) < self.number:
            raise UsageError(
                f"{sum(lengths)} examples in batches of {max(lengths)} leave a batch of {min(lengths)} for"
                f" {self.number} processes; take another `batch_size`"
            )

    def autocast(self) -> torch.autocast:
        """Return the context in which products have the run's precision (accelerate's is one for a whole program)."""
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.halves)

    def share(self, columns: Sequence[Sequence[str]]) -> list[Sequence[str]]:
        """Return this process's rows of a batch."""
        start, stop = self._bounds(len(columns[0]))[self.index]
        return [column[start:stop] for column in columns]

    def join(self, rows: Tensor, total: int) -> Tensor:
        """Return the whole batch's vectors (total, d) from each process's own; the own ones with gradient."""
        if self.number == 1:
            return rows
        bounds = self._bounds(total)
        padded = self.accelerator.pad_across_processes(rows.detach().to(self.device), dim=0)
        parts = list(torch.split(self.accelerator.gather(padded).to(rows.device), len(padded)))
        joined = [part[: stop - start] for part, (start, stop) in zip(parts, bounds, strict=True)]
        joined[self.index] = rows
        return torch.cat(joined)

    def total(self, value: Tensor) -> Tensor:
        """Return the sum over the processes, without gradient."""
        if self.number == 1:
            return value.detach()
        summed: Tensor = self.accelerator.reduce(value.detach().clone(), "sum")
        return summed

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Put the sum over the processes in the place of every gradient."""
        if self.number == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad = self.accelerator.reduce(parameter.grad, "sum")

    def wait(self) -> None:
        """Wait for the others."""
        self.accelerator.wait_for_everyone()

    def _bounds(self, total: int) -> list[tuple[int, int]]:
        edges = np.linspace(0, total, self.number + 1).astype(int).tolist()
        return list(itertools.pairwise(edges))


def start_processes(device: str, *, halves: bool, trackers: Sequence[str], folder: Path) -> Processes:
    """Join the other processes of this launch, where there are any.

    Args:
        device: Of this process where it is alone; among several accelerate gives each its own.
        halves: Products in bfloat16; weights and optimiser stay float32.
        trackers: Names of accelerate's trackers to report to.
        folder: Where trackers may keep files, in a folder of their own.

    Raises:
        UsageError: A tracker that is unknown or not installed, or that sends what it is given while ``offline``.
    """
    available = {str(getattr(tracker, "value", tracker)) for tracker in get_available_trackers()}
    for tracker in trackers:
        if tracker not in available:
            installed = ", ".join(sorted(available)) or "none"
            raise UsageError(f"`trackers` {tracker!r} is unknown or not installed; installed trackers: {installed}")
        if is_offline() and tracker not in _LOCAL_TRACKERS:
            raise UsageError(
                f"`trackers` {tracker!r} uses the network, which `offline` forbids; without it: "
                f"{', '.join(_LOCAL_TRACKERS)}"
            )
    accelerator = Accelerator(
        cpu=device == "cpu",
        log_with=list(trackers) or None,
        project_dir=str(folder / _TRACKERS) if trackers else None,
    )
    if accelerator.num_processes > 1 and device != "cpu":
        device = str(accelerator.device)
    return Processes(accelerator, device=device, halves=halves)
