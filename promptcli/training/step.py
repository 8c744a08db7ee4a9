"""A step of training: gradients within memory and over all processes, and the optimiser's step.

If several processes train together (`accelerate launch`, `torchrun`), each encodes a share of every
batch and sees all negatives. Every process computes the loss of the complete batch, but only its
own vectors carry gradient. The sum of the gradients equals a single process's gradient.

The papers' programs had an AdamW whose epsilon, bias correction and weight decay differ from
torch's.
"""

import contextlib
import math
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from promptcli.backbones.devices import Fetch, begin_fetch, choose_device, choose_dtype
from promptcli.errors import (
    OutOfMemoryError,
    PromptcliError,
    UsageError,
    is_out_of_memory,
    join_lines,
)
from promptcli.notes import note
from promptcli.training.objective import Columns, TokenizedSides
from promptcli.training.trainable_encoder import TrainableEncoder

#: Factor of a run's seed; runs with different seeds do not draw the same dropout in any step.
RUN_SEED_STRIDE = 1_000_003
#: Difference between the seeds of two processes; they share none in 7,919 steps.
_PROCESS_SEED_STRIDE = 7_919
_MIN_CHUNK_TOKENS = 64  # fewest tokens per pass when memory runs out
_COMPILER_MESSAGE_CHARS = 160
MAX_GRADIENT_NORM = 1.0  #: largest global norm of the gradient
_BETAS = (0.9, 0.999)


class Processes:
    """The processes of a run: a single process, or all processes of the accelerator."""

    def __init__(
        self, accelerator: Accelerator | None = None, *, device: str = "cpu", mixed: bool = False
    ) -> None:
        self.accelerator = accelerator
        self.device = device  #: of this process
        self.mixed = mixed  #: matrix products in bfloat16; weights and optimiser stay float32
        self.world_size: int = accelerator.num_processes if accelerator else 1
        self.rank: int = accelerator.process_index if accelerator else 0
        self.is_main = self.rank == 0

    def check(self, examples: int, batch_size: int) -> None:
        """Refuse a batch size whose last batch of an epoch has fewer examples than processes."""
        last = examples % batch_size or batch_size
        if last < self.world_size:
            raise UsageError(
                f"{examples} examples leave a last batch of {last} for {self.world_size} processes;"
                " set another",
                parameter="batch_size",
            )

    def autocast(self) -> torch.autocast:
        """Return the context that sets the precision of matrix products; accelerate's would set it
        for the whole program.
        """
        return torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.mixed)

    def share(self, columns: Sequence[Sequence[str]]) -> list[Sequence[str]]:
        """Return the examples of this process."""
        own_rows = self._rows(len(columns[0]))
        return [column[own_rows] for column in columns]

    def join(self, rows: Tensor, total: int) -> Tensor:
        """Return the vectors of the complete batch, (total, d); the rows of this process carry
        gradient.
        """
        if self.accelerator is None:
            return rows
        own_rows = self._rows(total)
        joined = rows.new_zeros(total, *rows.shape[1:])
        joined[own_rows] = rows.detach()
        joined = self._sum(joined.to(self.device)).to(rows.device)
        return torch.cat([joined[: own_rows.start], rows, joined[own_rows.stop :]])

    def total(self, value: Tensor) -> Tensor:
        """Return the sum over the processes, without gradient."""
        return self._sum(value.detach().clone())

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its sum over the processes.

        A parameter that has a gradient in no process gets none, so the optimiser skips it.
        """
        if self.accelerator is None:
            return
        parameters = list(parameters)
        has_gradient = [float(parameter.grad is not None) for parameter in parameters]
        counts = self._sum(torch.tensor(has_gradient, device=self.device)).tolist()
        for parameter, count in zip(parameters, counts, strict=True):
            if count:
                gradient = parameter.grad
                parameter.grad = self._sum(
                    torch.zeros_like(parameter) if gradient is None else gradient
                )

    def wait(self) -> None:
        if self.accelerator is not None:
            with _together(self.world_size):
                self.accelerator.wait_for_everyone()

    def _rows(self, total: int) -> slice:
        """Return the rows of this process in a batch of ``total``."""
        start, stop = (total * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return slice(start, stop)

    def _sum(self, value: Tensor) -> Tensor:
        if self.accelerator is None:
            return value
        with _together(self.world_size):
            summed: Tensor = self.accelerator.reduce(value, "sum")
        return summed


@contextlib.contextmanager
def _together(world_size: int) -> Iterator[None]:
    """Report in one line that another process is missing or has ended."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = join_lines(error, 120)
        raise PromptcliError(
            f"another process of the {world_size} has ended or never started ({reason})"
        ) from None


def number_of_processes(environ: Mapping[str, str]) -> int:
    """Return how many processes `accelerate launch` or `torchrun` started together, by the
    variables that they set.

    Some of these variables may remain in interactive shells and batch jobs. A process that lacks
    one of them counts as a single process.
    """
    number = environ.get("WORLD_SIZE", "")
    is_complete = environ.get("RANK") and environ.get("MASTER_ADDR")
    return max(1, int(number)) if is_complete and number.isdecimal() else 1


def start_processes(device: str | None, dtype: str | None) -> Processes:
    """Join the other processes of this launch, each on its own device, in the given precision."""
    device = choose_device(device or "auto")
    mixed = choose_dtype(dtype or "auto", device) == torch.bfloat16
    world_size = number_of_processes(os.environ)
    if world_size == 1:
        return Processes(device=device, mixed=mixed)
    note(
        f"process {os.environ['RANK']} of {world_size} meets the others at"
        f" {os.environ['MASTER_ADDR']}"
    )
    with _together(world_size):
        accelerator = Accelerator(cpu=device == "cpu", mixed_precision="no")
    if accelerator.num_processes != world_size:
        raise UsageError(
            f"only {accelerator.num_processes} of {world_size} processes would train together;"
            " start them with `accelerate launch` or `torchrun`, which set LOCAL_RANK"
        )
    if device != "cpu":
        device = str(accelerator.device)
    return Processes(accelerator, device=device, mixed=mixed)


class OlderAdamW(torch.optim.Optimizer):
    """AdamW of transformers until 4.2.1.

    With m and v the running means of g and g^2 at step t, a parameter moves by
    -lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps), so epsilon is added before the bias
    correction; torch has -lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps). Without correction
    it moves by -lr m / (sqrt(v) + eps). Decay follows: p -= lr wd p.
    """

    def __init__(
        self, params: Any, lr: float, eps: float, *, corrected: bool, weight_decay: float = 0.0
    ) -> None:
        super().__init__(
            params, {"lr": lr, "eps": eps, "corrected": corrected, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        first, second = _BETAS
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"], state["exp_avg_sq"] = (
                        torch.zeros_like(parameter),
                        torch.zeros_like(parameter),
                    )
                state["step"] += 1
                mean: Tensor = state["exp_avg"].lerp_(parameter.grad, 1 - first)
                square: Tensor = state["exp_avg_sq"].mul_(second)
                square.addcmul_(parameter.grad, parameter.grad, value=1 - second)
                size = group["lr"]
                if group["corrected"]:
                    steps = float(state["step"])
                    size *= math.sqrt(1 - second**steps) / (1 - first**steps)
                parameter.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-size)
                if group["weight_decay"]:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])


def _groups(named: Mapping[str, nn.Parameter], decay: float) -> list[dict[str, Any]]:
    """Return the parameters in two groups: those with decay, and biases and layer norms without."""
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": decay},
        {"params": [], "weight_decay": 0.0},
    ]
    for name, parameter in named.items():
        is_constant = name.endswith(("bias", "LayerNorm.weight"))
        groups[is_constant]["params"].append(parameter)
    return [group for group in groups if group["params"]]


#: Makes an optimiser of named parameters with a learning rate and a weight decay.
OptimizerFactory = Callable[[Mapping[str, nn.Parameter], float, float], torch.optim.Optimizer]
#: The optimisers by their names in ``TrainingSettings.optimizer``: torch's, transformers 4.2.1's,
#: ConSERT's.
OPTIMIZERS: dict[str, OptimizerFactory] = {
    "adamw": lambda named, rate, decay: torch.optim.AdamW(
        named.values(), lr=rate, weight_decay=decay, betas=_BETAS, eps=1e-8, fused=True
    ),
    "adamw-4.2.1": lambda named, rate, decay: OlderAdamW(
        _groups(named, decay), rate, 1e-8, corrected=True
    ),
    "adamw-uncorrected": lambda named, rate, decay: OlderAdamW(
        _groups(named, decay), rate, 1e-6, corrected=False
    ),
}


@dataclass(frozen=True)
class TokenizedBatch:
    """A batch as a step reads it."""

    columns: Columns  #: the texts of the complete batch, of all processes
    own_columns: Columns  #: this process's share of the texts
    sides: TokenizedSides  #: the sides of that share


class TrainingStep:
    """Takes the steps of an encoder's training in one or several processes.

    The settings, the number of the step, its examples and the number of processes determine what a
    step draws.
    """

    def __init__(self, encoder: TrainableEncoder, processes: Processes) -> None:
        self.encoder = encoder
        self.processes = processes
        self.settings = encoder.settings
        self.parameters = encoder.trainable()
        self.loss_parameters = encoder.objective.loss_parameters()
        self.view_parameters = {
            name: parameter
            for name, parameter in self.parameters.items()
            if parameter not in self.loss_parameters
        }
        peak = self.settings.learning_rate
        self.optimizer = OPTIMIZERS[self.settings.optimizer](
            self.view_parameters, peak, self.settings.weight_decay
        )
        for group in self.optimizer.param_groups:
            group["peak"] = peak
        for parameter, rate in self.loss_parameters.items():  # each with its own rate, no decay
            self.optimizer.add_param_group(
                {"params": [parameter], "lr": rate, "peak": rate, "weight_decay": 0.0}
            )

    def tokenize(self, columns: Columns) -> TokenizedBatch:
        """Tokenise this process's share of a batch, given as texts by column."""
        own_columns = self.processes.share(columns)
        return TokenizedBatch(columns, own_columns, self.encoder.tokenize(own_columns))

    def gradients(self, step: int, batch: TokenizedBatch) -> Tensor:
        """Compute the gradients of a step (from 0) and return the loss, still on the device.

        If memory runs out, a lone process repeats the step with gradient caching and passes half as
        large, and keeps both; several processes end.
        """
        encoder = self.encoder
        processes = self.processes
        problem = f"out of memory at step {step + 1}"
        while True:
            try:
                return self._gradients_once(step, batch)
            except Exception as error:
                if not is_out_of_memory(error):
                    # the classes of the compiler's errors are imported on use
                    if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                        raise
                    first, *_ = str(error).splitlines() or [type(error).__name__]
                    raise UsageError(
                        f"torch cannot compile {encoder.backbone.name!r} here"
                        f" ({join_lines(first, _COMPILER_MESSAGE_CHARS)}); leave it out",
                        parameter="compile",
                    ) from None
            tokens = encoder.chunk_tokens // 2
            if processes.world_size > 1:  # no retry: the other processes wait for the vectors
                raise OutOfMemoryError(
                    f"{problem} in process {processes.rank}; set gradient-caching and"
                    f" chunk-tokens {tokens} in every process"
                )
            if tokens < _MIN_CHUNK_TOKENS:
                raise OutOfMemoryError(
                    f"{problem} even with {encoder.chunk_tokens} tokens per pass; set a smaller"
                    " batch size"
                )
            encoder.caching = True
            encoder.backbone.compile(on=False)  # caching repeats a pass, with the same dropout
            encoder.chunk_tokens = tokens
            note(f"{problem}: gradient caching from now on, {tokens} tokens per pass")

    def _gradients_once(self, step: int, batch: TokenizedBatch) -> Tensor:
        encoder = self.encoder
        objective = encoder.objective
        processes = self.processes
        seed = (
            self.settings.seed * RUN_SEED_STRIDE + step + _PROCESS_SEED_STRIDE * processes.rank
        ) % 2**32
        _seed_generators(seed, torch.device(processes.device))
        if not encoder.training:
            encoder.train()
        for parameter in self.parameters.values():
            parameter.grad = None
        encoder.start_batch()
        with processes.autocast():
            views = objective.views(encoder, batch.sides, batch.own_columns)
        # every process has the loss of the complete batch, with gradient through its own vectors
        joined = [processes.join(view, len(batch.columns[0])) for view in views]
        loss: Tensor = objective.loss(joined, batch.columns)
        reported_loss = loss.detach()
        if encoder.mlm_head is not None:
            _, predictions = encoder.mlm_sums
            masked_lm = encoder.masked_lm_loss(step, processes.total(predictions))
            # the loss gets this process's share: gradients are added up
            loss = loss + masked_lm
            reported_loss = reported_loss + processes.total(masked_lm)
        # not accelerate's backward: bfloat16 needs no scaled loss, a step accumulates no gradients,
        # and the processes add up their gradients below
        loss.backward()  # type: ignore[no-untyped-call]
        # every process has the complete gradient of the loss's inputs: their sum must count it once
        for parameter in self.loss_parameters:
            if parameter.grad is not None:
                parameter.grad /= processes.world_size
        processes.add_gradients(self.parameters.values())
        return reported_loss

    def apply_gradients(self) -> Tensor:
        """Clip the gradients and take the optimiser's step; return their norm before."""
        try:
            norm = clip_grad_norm_(self.view_parameters.values(), MAX_GRADIENT_NORM)
            if self.loss_parameters:  # clipped separately: neither shrinks the other's steps
                clip_grad_norm_(list(self.loss_parameters), MAX_GRADIENT_NORM)
            self.optimizer.step()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            count = sum(parameter.numel() for parameter in self.parameters.values())
            raise OutOfMemoryError(
                f"out of memory: {count:,} parameters learn, {16 * count / 1e9:.1f} GB with"
                " gradients and moments; use a smaller backbone, or a method such as dcpcse"
            ) from None
        return norm


def _seed_generators(seed: int, device: torch.device) -> None:
    """Seed Python, numpy, and torch on the CPU and on a device.

    ``torch.manual_seed`` would seed every kind of device, and records each call for kinds that this
    machine lacks.
    """
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - plug-ins may draw from it
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)
    elif device.type == "mps":
        torch.mps.manual_seed(seed)


class DeferredMetrics:
    """Passes each step's metrics to a callback, at once on a CPU and one step later on a GPU; the
    host then does not wait for the GPU.
    """

    def __init__(self, record: Callable[[np.ndarray, Any], None]) -> None:
        self._record = record
        self._unread = deque[tuple[Fetch[str], Any]]()

    def add(self, metrics: Tensor, step: Any) -> None:
        """Queue a step's metrics; pass on the metrics that are ready."""
        self._unread.append((begin_fetch({"metrics": metrics}), step))
        self.read(leave=int(metrics.is_cuda))

    def read(self, leave: int = 0) -> None:
        """Pass on the metrics of all steps except the last ``leave``."""
        while len(self._unread) > leave:
            fetch, step = self._unread.popleft()
            self._record(fetch()["metrics"], step)
