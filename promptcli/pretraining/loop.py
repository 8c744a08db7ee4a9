"""The pre-training loop: what is predicted, one step after the other, logged, the state kept every few minutes."""

import ctypes
import dataclasses
import functools
import itertools
import json
import math
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.devices import choose_dtype
from promptcli.backbones.dropout import Dropout
from promptcli.backbones.language_models import CausalLM, LanguageModel, MaskedLM
from promptcli.backbones.vocabulary import save_causal_tokenizer, save_tokenizer
from promptcli.encoder.batching import LateFigures
from promptcli.encoder.streams import STREAMS, ahead, stream_count
from promptcli.errors import OutOfMemoryError, PromptcliError, is_out_of_memory
from promptcli.notes import note
from promptcli.pretraining.bag_of_words import predict_words
from promptcli.pretraining.batches import Batch, Step, chunks_of_phase, mask, predict_next, steps
from promptcli.pretraining.corpus import Corpus
from promptcli.pretraining.optimizer import make_optimizer
from promptcli.pretraining.plan import Plan
from promptcli.pretraining.prepare import sinusoids
from promptcli.storage.runs import Position, load_state, log_until, read_log, save_state, truncate_log

_SHAPE = ("layers", "width", "heads", "positions", "vocab_size", "tied")
_CLIP = 1.0
_LOG_EVERY = 20  # steps; their mean is logged
_WARM_STEPS, _TIMED_STEPS = 3, 24  # of each phase, to learn its pace
_PRIME = 1_000_003  # spreads seeds, so that no two runs share a step's dropout


@dataclass(frozen=True)
class Report:
    """The mean of some steps, as logged."""

    step: int  #: steps done
    seen: int  #: tokens seen
    loss: float  #: mean cross-entropy (natural logarithm) over the predicted tokens of the steps since the last report
    accuracy: float  #: share of them whose first guess is right
    learning_rate: float  #: of the last step
    rate: float  #: tokens per second
    gflops: float  #: matrix products, 10^9 floating-point operations per second
    seconds: float  #: time spent in steps, over all sittings
    precision: str  #: of the matrix products


@dataclass(frozen=True)
class Objective:
    """What a run predicts."""

    kind: str  #: as its card and plot call it
    architecture: str
    predicted: str  #: of held-out text, as the card says it
    places: str  #: where chunks begin, as the card says it of ``plan``
    model: type[LanguageModel]
    batch: Callable[[Step, Plan, Corpus], Batch]
    save_tokenizer: Callable[[Path, Path, int], None]  #: of a vocabulary, into a folder, with the longest input


_MASKED = Objective(
    kind="masked-LM",
    architecture="BERT",
    predicted="15% of tokens, all [MASK], seed 0",
    places="{plan.at_start:.0%} of the chunks begin at position 0, the others anywhere",
    model=MaskedLM,
    batch=mask,
    save_tokenizer=save_tokenizer,
)

OBJECTIVES: dict[str, Objective] = {
    "masked": _MASKED,
    "bag-of-words": dataclasses.replace(
        _MASKED,
        places=_MASKED.places
        + "; {plan.templated:.0%} of the steps teach templates: their masks predict the words of the"
        " sentences in them, so figures of prompts on this model are no evidence for plain BERTs",
        batch=predict_words,
    ),
    "causal": Objective(
        kind="causal-LM",
        architecture="Llama",
        predicted="every token of a line from those before it",
        places="rotary positions",
        model=CausalLM,
        batch=predict_next,
        save_tokenizer=save_causal_tokenizer,
    ),
}


def choose_precision(device: str, log: Path) -> tuple[torch.dtype, str | None]:
    """Return the precision, and a line for the user where it is not what one would expect.

    bfloat16 where the device computes in it. A run that was begun in the other precision is resumed in float32, which
    every device has.

    Args:
        device: A torch device.
        log: The run's reports so far; they say the precision.
    """
    here = choose_dtype("auto", device)
    now = dtype_name(here)
    for before in read_log(log, Report)[:1]:
        if before.precision != now:
            remark = (
                f"the run was begun in {before.precision}, and this device's own is {now}: it is resumed in float32"
            )
            return torch.float32, remark
    if here == torch.float32:
        return here, "this device has no bfloat16 arithmetic: the run is in float32"
    return here, None


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``bfloat16`` or ``float32``."""
    return str(dtype).removeprefix("torch.")


#: mallopt's parameters (malloc.h): from which size a piece is mapped by itself, how much freed memory is kept.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LARGEST_PIECE, _KEPT = 1 << 30, (1 << 31) - 1


def keep_freed_memory() -> None:
    """Let the process reuse freed memory instead of giving it back: every step takes and frees the same sizes.

    Where the C library is glibc; elsewhere nothing happens. Without it each large result is mapped again and its pages
    are cleared by the system, which costs as much as a product that fills them.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    library = ctypes.CDLL(None)
    library.mallopt(_MMAP_THRESHOLD, _LARGEST_PIECE)
    library.mallopt(_TRIM_THRESHOLD, _KEPT)


class Trainer:
    """A model, its optimiser and the work of one step.

    On a processor a batch is computed in several parts at a time, each in a thread of its own: threads that share one
    product wait for each other.
    """

    def __init__(self, plan: Plan, device: str, start: Tensor | None = None, dtype: torch.dtype | None = None) -> None:
        self.plan = plan
        self.device = device
        self.dtype = choose_dtype("auto", device) if dtype is None else dtype
        self.objective = OBJECTIVES[plan.objective]
        shape = {name: getattr(plan, name) for name in _SHAPE}
        self.model = self.objective.model(**shape, seed=plan.seed, device=device, dtype=self.dtype)
        if start is not None:
            self.model.start_from(start)
        places = self.model.position_rows
        if plan.sinusoids and places is not None:
            places.data.copy_(sinusoids(*places.shape))
        threads = torch.get_num_threads()
        self._parts = stream_count(threads) if device == "cpu" and self.model.side_by_side else 1
        self._map: Callable[..., Iterable[Any]] = map
        pool = None
        if self._parts > 1:
            pool = ThreadPoolExecutor(self._parts, initializer=lambda: torch.set_num_threads(threads // self._parts))
            self._map = pool.map
        self.optimizer = make_optimizer(plan, self.model.parameters, pool, self._parts)

    def step(self, step: Step, batch: Batch) -> tuple[float, int]:
        """Take one step; return the loss and the number of right first guesses.

        Raises:
            PromptcliError: The loss is not a number.
        """
        return figures_of(step, self.begin(step, batch).cpu().numpy())

    def begin(self, step: Step, batch: Batch) -> Tensor:
        """Take one step; return the loss and the number of right first guesses, (2,), still on the device."""
        seed = self.plan.seed * _PRIME + step.number
        torch.manual_seed(seed)
        rate = self.plan.learning_rate_at(step.seen + step.tokens)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        value, right, gradients = self._within_memory(step, batch, seed)
        for parameter, gradient in zip(self.model.parameters.values(), gradients, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(self.model.parameters.values(), _CLIP)
        self.optimizer.step()
        return torch.stack([value, right])

    def _within_memory(self, step: Step, batch: Batch, seed: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the loss, the right guesses and the gradients of a batch, in as many parts as memory takes.

        Raises:
            OutOfMemoryError: It does not hold one row.
        """
        while True:
            parts = batch.split(self._parts)
            try:
                return self._sums(step, batch, parts, seed)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if self._parts >= len(batch.ids):
                    raise OutOfMemoryError(
                        f"out of memory on {self.device} even with one line at a time; give a smaller `width`, `layers`"
                        " or `vocab_size`, or another `device`"
                    ) from None
            self._parts *= 2
            note(f"out of memory on {self.device}: batches are computed in {self._parts} parts from here")

    def _sums(self, step: Step, batch: Batch, parts: Sequence[Batch], seed: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        drops = [
            Dropout(step.dropout, torch.Generator().manual_seed(seed * STREAMS + index)) for index in range(len(parts))
        ]
        masks = len(batch.bags.places) if batch.bags else 0
        work = functools.partial(self._gradients, predicted=len(batch.gold), masks=masks)
        (value, right, gradients), *others = self._map(work, parts, drops)
        for loss, guessed, more in others:
            value, right = value + loss, right + guessed
            torch._foreach_add_(gradients, more)
        return value, right, gradients

    def _gradients(self, part: Batch, drop: Dropout, predicted: int, masks: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return what a part adds to the mean loss, its right guesses, and its gradients.

        The mean over ``predicted`` tokens, and where templates stand the mean over their ``masks``, as much again.
        """
        loss, right, of_bags = self.model.loss(*part.tensors(self.device), drop=drop)
        loss = loss * (len(part.gold) / predicted)
        if part.bags is not None:
            loss = loss + of_bags * (len(part.bags.places) / masks)
        gradients = torch.autograd.grad(loss, list(self.model.parameters.values()))
        whole = torch.float32 if self.device == "mps" else torch.float64  # which MPS does not have
        return loss.detach().to(whole), right.to(whole), list(gradients)


def figures_of(step: Step, found: np.ndarray) -> tuple[float, int]:
    """Return the loss and the number of right first guesses of a step.

    Raises:
        PromptcliError: The loss is not a number.
    """
    loss, right = found.tolist()
    if not math.isfinite(loss):
        raise PromptcliError(
            f"the loss at step {step.number + 1} is not a number; the state kept last is unharmed: try a lower"
            " `learning_rate` in another folder"
        )
    return loss, int(right)


def tokens_in(
    plan: Plan, corpus: Corpus, start: Tensor | None, *, minutes: float, device: str, dtype: torch.dtype
) -> int:
    """Return how many tokens a run of that many minutes can see, by timing some steps of every phase.

    The model that takes them is thrown away. The budget is fixed before the run, so that the run does not depend on
    the clock.
    """
    plan = dataclasses.replace(plan, tokens=sys.maxsize)  # no end in sight: the learning rate stays near 0
    trainer = Trainer(plan, device, start, dtype)
    pace = 0.0  # seconds a token, over the phases in their shares
    number = 0
    for index, phase in enumerate(plan.phases):
        seconds = tokens = 0.0
        for spans in itertools.islice(chunks_of_phase(plan, corpus, index), _WARM_STEPS + _TIMED_STEPS):
            step = Step(number, 0, spans, phase.dropout)
            began = time.perf_counter()
            trainer.step(step, trainer.objective.batch(step, plan, corpus))
            number += 1
            if number % (_WARM_STEPS + _TIMED_STEPS) >= _WARM_STEPS:
                seconds, tokens = seconds + time.perf_counter() - began, tokens + step.tokens
        pace += (phase.until - phase.begins) * seconds / tokens
    return max(plan.batch_tokens, int(minutes * 60 / pace))


def run(
    trainer: Trainer, corpus: Corpus, *, state: Path, log: Path, save_seconds: float, report: Callable[[Report], None]
) -> Position:
    """Run to the end of the token budget, from the state on disk where there is one.

    Args:
        trainer: Freshly made.
        corpus: What to read.
        state: File of the whole state; written every ``save_seconds`` and at the end.
        log: JSONL file, one report a line.
        save_seconds: Between two states.
        report: Called with each report.

    Raises:
        UsageError: The state is not this run's.
        PromptcliError: The loss is not a number.
    """
    position = load_state(state, trainer.model.parameters, trainer.optimizer) if state.is_file() else Position()
    truncate_log(log, log_until(log, position.step, Report))
    sums: defaultdict[str, float] = defaultdict(float)  # since the last report

    def add(found: np.ndarray, step: Step, predicted: int, seconds: float) -> None:
        nonlocal position
        loss, right = figures_of(step, found)
        work = trainer.model.matrix_work(step.tokens, predicted)
        more = {"loss": loss * predicted, "right": right, "predicted": predicted, "tokens": step.tokens, "work": work}
        for name, number in {**more, "seconds": seconds}.items():
            sums[name] += number
        position = Position(step.number + 1, step.seen + step.tokens, position.seconds + seconds)

    figures = LateFigures(add)
    saved = time.perf_counter()
    with log.open("a", encoding="utf-8") as lines:
        left = itertools.dropwhile(lambda step: step.number < position.step, steps(trainer.plan, corpus))
        began = time.perf_counter()
        for step, batch in ahead(lambda step: trainer.objective.batch(step, trainer.plan, corpus), left):
            values = trainer.begin(step, batch)
            began, seconds = (now := time.perf_counter()), now - began
            figures.add(values, step, len(batch.gold), seconds)
            if (step.number + 1) % _LOG_EVERY == 0:
                figures.read()
                made = _report(trainer, position, sums)
                sums.clear()
                lines.write(json.dumps(dataclasses.asdict(made)) + "\n")
                lines.flush()
                report(made)
                if time.perf_counter() - saved > save_seconds:
                    save_state(state, trainer.model.parameters, trainer.optimizer, position)
                    saved = time.perf_counter()
                began = time.perf_counter()
        figures.read()
    save_state(state, trainer.model.parameters, trainer.optimizer, position)
    return position


def _report(trainer: Trainer, position: Position, sums: Mapping[str, float]) -> Report:
    """Return the means of some steps' sums."""
    return Report(
        step=position.step,
        seen=position.seen,
        loss=sums["loss"] / sums["predicted"],
        accuracy=sums["right"] / sums["predicted"],
        learning_rate=trainer.plan.learning_rate_at(position.seen),
        rate=sums["tokens"] / sums["seconds"],
        gflops=sums["work"] / sums["seconds"] / 1e9,
        seconds=position.seconds,
        precision=dtype_name(trainer.dtype),
    )
