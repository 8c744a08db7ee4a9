"""Processes of one run: each takes a share of every batch, all see every negative (`accelerate
launch`, `torchrun`).

Every process computes the loss of the complete batch, and only its own vectors carry gradient:
their sum is a single process's gradient.
"""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from promptcli.backbones.devices import choose_device, choose_dtype
from promptcli.errors import PromptcliError, UsageError, is_out_of_memory, one_line
from promptcli.notes import note
from promptcli.training.launch import number_of_processes


class Processes:
    """The processes of a run: this one alone, or those that its accelerator knows."""

    def __init__(
        self, accelerator: Accelerator | None = None, *, device: str = "cpu", mixed: bool = False
    ) -> None:
        self.accelerator = accelerator
        self.device = device  #: of this process
        self.mixed = mixed  #: products in bfloat16; weights and optimiser stay float32
        self.number: int = accelerator.num_processes if accelerator else 1
        self.index: int = accelerator.process_index if accelerator else 0
        self.is_main = self.index == 0

    def check(self, examples: int, batch_size: int) -> None:
        """Refuse an epoch's last batch if it has fewer examples than there are processes."""
        last = examples % batch_size or batch_size
        if last < self.number:
            raise UsageError(
                f"{examples} examples leave a batch of {last} for {self.number} processes; take"
                " another",
                parameter="batch_size",
            )

    def autocast(self) -> torch.autocast:
        """Return the context in which products have the run's precision (accelerate's is one for a
        whole program).
        """
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.mixed)

    def share(self, columns: Sequence[Sequence[str]]) -> list[Sequence[str]]:
        if self.accelerator is None:
            return list(columns)
        start, stop = self._bounds(len(columns[0]))[self.index]
        return [column[start:stop] for column in columns]

    def join(self, rows: Tensor, total: int) -> Tensor:
        """Return the vectors of the complete batch, (total, d).

        The rows of this process carry gradient.
        """
        if self.accelerator is None:
            return rows
        bounds = self._bounds(total)
        with _together(self.number):
            padded = self.accelerator.pad_across_processes(rows.detach().to(self.device), dim=0)
            gathered = torch.split(self.accelerator.gather(padded).to(rows.device), len(padded))
        joined = [
            vectors[: stop - start] for vectors, (start, stop) in zip(gathered, bounds, strict=True)
        ]
        joined[self.index] = rows
        return torch.cat(joined)

    def total(self, value: Tensor) -> Tensor:
        """Return the sum over the processes, without gradient."""
        if self.accelerator is None:
            return value.detach()
        with _together(self.number):
            summed: Tensor = self.accelerator.reduce(value.detach().clone(), "sum")
        return summed

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Put the sum over the processes in place of each gradient; what has none in any process
        keeps none, as in a single process, so that the optimiser passes it over.
        """
        if self.accelerator is None:
            return
        learning = list(parameters)
        have = torch.tensor([float(one.grad is not None) for one in learning], device=self.device)
        with _together(self.number):
            counts = self.accelerator.reduce(have, "sum").tolist()
        for parameter, count in zip(learning, counts, strict=True):
            if not count:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            with _together(self.number):
                parameter.grad = self.accelerator.reduce(parameter.grad, "sum")

    def wait(self) -> None:
        if self.accelerator is not None:
            with _together(self.number):
                self.accelerator.wait_for_everyone()

    def _bounds(self, total: int) -> list[tuple[int, int]]:
        edges = np.linspace(0, total, self.number + 1).astype(int).tolist()
        return list(itertools.pairwise(edges))


@contextlib.contextmanager
def _together(number: int) -> Iterator[None]:
    """Report in one line that the other processes are missing or have ended."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        said = one_line(error, 120)
        raise PromptcliError(
            f"another process of the {number} has ended or was never there ({said})"
        ) from None


def start_processes(device: str | None, dtype: str | None) -> Processes:
    """Join the other processes of this launch, each on its own device, in the precision that is
    asked for.
    """
    device = choose_device(device or "auto")
    mixed = choose_dtype(dtype or "auto", device) == torch.bfloat16
    number = number_of_processes(os.environ)
    if number == 1:
        return Processes(device=device, mixed=mixed)
    note(
        f"process {os.environ['RANK']} of {number} meets the others at {os.environ['MASTER_ADDR']}"
    )
    with _together(number):
        accelerator = Accelerator(cpu=device == "cpu", mixed_precision="no")
    if accelerator.num_processes != number:
        raise UsageError(
            f"of {number} processes only {accelerator.num_processes} would train together; start"
            " them with `accelerate launch` or `torchrun`, which set LOCAL_RANK"
        )
    if device != "cpu":
        device = str(accelerator.device)
    return Processes(accelerator, device=device, mixed=mixed)
