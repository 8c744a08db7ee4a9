"""Processes of one run (`accelerate launch`, `torchrun`): each encodes a share of every batch and
sees all negatives.

Every process computes the loss of the complete batch, but only its own vectors carry gradient. The
sum of the gradients equals a single process's gradient.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from promptcli.backbones.devices import choose_device, choose_dtype
from promptcli.errors import PromptcliError, UsageError, is_out_of_memory, one_line
from promptcli.notes import note
from promptcli.training.launch import number_of_processes


class Processes:
    """The processes of a run: this process alone, or all processes of the accelerator."""

    def __init__(
        self, accelerator: Accelerator | None = None, *, device: str = "cpu", mixed: bool = False
    ) -> None:
        self.accelerator = accelerator
        self.device = device  #: of this process
        self.mixed = mixed  #: matrix products in bfloat16; weights and optimiser stay float32
        self.number: int = accelerator.num_processes if accelerator else 1
        self.index: int = accelerator.process_index if accelerator else 0
        self.is_main = self.index == 0

    def check(self, examples: int, batch_size: int) -> None:
        """Refuse a batch size whose last batch of an epoch has fewer examples than processes."""
        last = examples % batch_size or batch_size
        if last < self.number:
            raise UsageError(
                f"{examples} examples leave a last batch of {last} for {self.number} processes; set"
                " another",
                parameter="batch_size",
            )

    def autocast(self) -> torch.autocast:
        """Return the context that sets the precision of matrix products; accelerate's would set it
        for the whole program.
        """
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.mixed)

    def share(self, columns: Sequence[Sequence[str]]) -> list[Sequence[str]]:
        """Return the examples of this process."""
        own = self._rows(len(columns[0]))
        return [column[own] for column in columns]

    def join(self, rows: Tensor, total: int) -> Tensor:
        """Return the vectors of the complete batch, (total, d); the rows of this process carry
        gradient.
        """
        if self.accelerator is None:
            return rows
        own = self._rows(total)
        others = rows.new_zeros(total, *rows.shape[1:])
        others[own] = rows.detach()
        others = self._sum(others.to(self.device)).to(rows.device)
        return torch.cat([others[: own.start], rows, others[own.stop :]])

    def total(self, value: Tensor) -> Tensor:
        """Return the sum over the processes, without gradient."""
        return self._sum(value.detach().clone())

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its sum over the processes.

        A parameter without a gradient in every process stays without, so the optimiser skips it.
        """
        if self.accelerator is None:
            return
        learning = list(parameters)
        has_gradient = [float(parameter.grad is not None) for parameter in learning]
        counts = self._sum(torch.tensor(has_gradient, device=self.device)).tolist()
        for parameter, count in zip(learning, counts, strict=True):
            if count:
                gradient = parameter.grad
                parameter.grad = self._sum(
                    torch.zeros_like(parameter) if gradient is None else gradient
                )

    def wait(self) -> None:
        if self.accelerator is not None:
            with _together(self.number):
                self.accelerator.wait_for_everyone()

    def _rows(self, total: int) -> slice:
        """Return the rows of this process in a batch of ``total``."""
        start, stop = (total * index // self.number for index in (self.index, self.index + 1))
        return slice(start, stop)

    def _sum(self, value: Tensor) -> Tensor:
        if self.accelerator is None:
            return value
        with _together(self.number):
            summed: Tensor = self.accelerator.reduce(value, "sum")
        return summed


@contextlib.contextmanager
def _together(number: int) -> Iterator[None]:
    """Report in one line that another process is missing or has ended."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = one_line(error, 120)
        raise PromptcliError(
            f"another process of the {number} has ended or never started ({reason})"
        ) from None


def start_processes(device: str | None, dtype: str | None) -> Processes:
    """Join the other processes of this launch, each on its own device, in the given precision."""
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
            f"only {accelerator.num_processes} of {number} processes would train together; start"
            " them with `accelerate launch` or `torchrun`, which set LOCAL_RANK"
        )
    if device != "cpu":
        device = str(accelerator.device)
    return Processes(accelerator, device=device, mixed=mixed)
