"""The training loop: forward, loss and backward, development scores, checkpoints and resuming.

A run's folder holds ``state.safetensors`` (weights, moments, position; written at every score,
after some minutes without one, and at Ctrl-C and SIGTERM), ``best.safetensors`` (the
weights of the best development score) and ``log.jsonl`` (a development score a line).
"""

import contextlib
import dataclasses
import itertools
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from promptcli.data.sources import TrainingExamples
from promptcli.data.tasks import DevelopmentTask
from promptcli.encoder.batching import LateFigures
from promptcli.encoder.prefetching import prefetch
from promptcli.errors import (
    OutOfMemoryError,
    PromptcliError,
    UsageError,
    is_out_of_memory,
    one_line,
)
from promptcli.evaluation.evaluator import value_on
from promptcli.notes import Advance, describe, note, note_counts, stage
from promptcli.storage.files import atomic_path
from promptcli.storage.interrupts import delay_interrupts
from promptcli.storage.runs import Position, load_state, read_log, save_state, truncate_log
from promptcli.storage.tensors import check_seal, load_tensors, save_tensors
from promptcli.training.batches import batches, steps_of
from promptcli.training.methods.method import TrainingSettings
from promptcli.training.optimizers import CLIP, OPTIMIZERS
from promptcli.training.processes import Processes
from promptcli.training.trainable_encoder import Columns, Sides, TokenizedSide, TrainableEncoder
from promptcli.training.watching import DevScore, Watcher

#: Spreads seeds, so that runs with different seeds do not share a step's dropout.
PRIME = 1_000_003
_STRIDE = 7_919  # spreads them over processes, which meet again after as many steps
_LEAST_TOKENS = 64  # fewest tokens per pass when memory runs out
_COUNTED = 8192  # rows tokenised at a time for the count
_SECONDS_TO_SAVE = 300.0  # longest time between two written states
_CHARACTERS_SHOWN = 160  # characters of a compiler's message


class Trainer:
    """Trains an encoder in one or several processes.

    The data, the settings, the step's number and the number of processes determine what a step
    reads and draws. A resumed run therefore ends with the same weights, bit by bit, on the same
    machine, unless memory ran out.
    """

    def __init__(
        self, encoder: TrainableEncoder, processes: Processes, watchers: Sequence[Watcher] = ()
    ) -> None:
        self.encoder = encoder
        self.processes = processes
        self.watchers = watchers
        self.settings: TrainingSettings = encoder.settings
        self.parameters = encoder.trainable()
        self.loss_parameters = encoder.objective.loss_parameters()
        self.view_parameters = {
            name: one for name, one in self.parameters.items() if one not in self.loss_parameters
        }
        self.optimizer = self._make_optimizer()
        #: All scores of the run, in order; the start comes first if it is scored.
        self.dev_scores: list[DevScore] = []
        self._losses: list[float] = []  # since the last score
        self._scored_at = 0  # examples seen at the last score
        self.position = Position()  #: after the last complete step
        self._resumed_at = 0  # last step before this process began
        self._advance: Advance = lambda done: None

    @property
    def best(self) -> DevScore:
        return [score for score in self.dev_scores if score.best][-1]

    def _make_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimiser; the loss's parameters have their own rates and no decay."""
        settings = self.settings
        peak = settings.learning_rate
        optimizer = OPTIMIZERS[settings.optimizer](
            self.view_parameters, peak, settings.weight_decay
        )
        for group in optimizer.param_groups:
            group["peak"] = peak
        for parameter, rate in self.loss_parameters.items():
            optimizer.add_param_group(
                {"params": [parameter], "lr": rate, "peak": rate, "weight_decay": 0.0}
            )
        return optimizer

    def fit(
        self, examples: TrainingExamples, development: DevelopmentTask, folder: Path
    ) -> dict[str, Tensor]:
        """Train to the last step, or until ``patience`` ends, from the state in ``folder`` if it
        exists; return the tensors of the best development score.
        """
        settings = self.settings
        if not settings.drop_last:
            self.processes.check(len(examples), settings.batch_size)
        self.examples = examples
        self.development = development
        self.log = folder / "log.jsonl"
        self.state = folder / "state.safetensors"
        self.best_weights = folder / "best.safetensors"
        self.start_again = f"delete {folder} and start again"
        self.steps = steps_of(settings, len(examples))
        self._note_cut()
        self._begin_or_resume()
        # a GPU's figures are read one step late, so the CPU does not wait for it
        figures = LateFigures(self._record_step)
        with (
            stage(f"train {self.encoder.method.name}", self.steps) as self._advance,
            self._kept_if_interrupted(figures),
        ):
            self._advance(self.position.step)
            began = saved = time.perf_counter()
            # another thread tokenises the next step's examples while this one computes
            for (step, rows), (columns, sides) in prefetch(self._tokenize, self._batches()):
                if stalled(self.dev_scores, settings.patience):
                    break
                for group in self.optimizer.param_groups:
                    group["lr"] = learning_rate(settings, step, self.steps, group["peak"])
                loss = self.gradients(step, columns, sides)
                with delay_interrupts():  # weights and position belong to the same step
                    norm = self.apply_gradients()
                    figures.add(torch.stack([loss, norm]), step)
                    now = time.perf_counter()
                    before = self.position
                    self.position = Position(
                        step + 1, before.seen + len(rows), before.seconds + now - began
                    )
                began = now
                is_scored = self._is_scored(step + 1)
                if is_scored or now - saved > _SECONDS_TO_SAVE:
                    figures.read()
                    if is_scored:
                        self._score()
                    self._save()
                    began = saved = time.perf_counter()  # scoring and saving are not timed
            figures.read()
        self.processes.wait()
        return load_tensors(self._sealed_best(), hint=self.start_again, error=UsageError)

    def _note_cut(self) -> None:
        """Note how many sentences of all columns are longer than the first template's limit."""
        if not self.processes.is_main:
            return
        first, *_ = self.encoder.template_encoders
        count = cut = 0
        for start in range(0, len(self.examples), _COUNTED):
            rows = [column[start : start + _COUNTED] for column in self.examples.columns]
            sides = self.encoder.objective.sides(rows)
            for texts in {id(of_side): of_side for _, of_side in sides}.values():
                count += len(texts)
                cut += int(first.inputs(texts).truncated.sum())
        limit = f"{self.settings.max_length} tokens (max-length)"
        note_counts(count, blank=0, truncated=cut, limit=limit)

    def _sealed_best(self) -> Path:
        check_seal(self.best_weights, hint=self.start_again, error=UsageError)
        return self.best_weights

    def _save(self) -> None:
        """Write the state of the last complete step, from which a run is resumed."""
        if self.processes.is_main:
            position = dataclasses.replace(
                self.position, scored_at=self._scored_at, losses=tuple(self._losses)
            )
            save_state(self.state, self.parameters, self.optimizer, position)

    @contextlib.contextmanager
    def _kept_if_interrupted(self, figures: LateFigures) -> Iterator[None]:
        """Write the state of the last complete step if Ctrl-C or SIGTERM ends the block."""
        try:
            yield
        except KeyboardInterrupt:
            with delay_interrupts():
                if self.position.step > self._resumed_at:
                    figures.read()
                    self._save()
                    note(f"the state after step {self.position.step} of {self.steps} is kept")
            raise

    def _begin_or_resume(self) -> None:
        """Set the position to start from; a new run may first score the start."""
        begun = self.state.exists()
        self.processes.wait()  # before the main process writes anything
        if begun:
            self.position = position = load_state(self.state, self.parameters, self.optimizer)
            self._resumed_at = position.step
            self._scored_at = position.scored_at
            self._losses = list(position.losses)
            self.dev_scores = read_log(self.log, DevScore, until=position.step)
            if any(score.best for score in self.dev_scores):
                self._sealed_best()  # a damaged file is reported now, not after the last step
            note(f"resumed after step {position.step} of {self.steps}")
        self.processes.wait()  # until all processes have read the state
        step = self.position.step
        if self.processes.is_main:
            truncate_log(self.log, step if begun else -1)
        is_due = self.settings.scored == "also-ends"  # the start and the last step are also scored
        if begun:  # the run may have stopped between a step and its score
            is_due = self._is_scored(step) and step not in {one.step for one in self.dev_scores}
        if is_due:
            self._score()

    def _batches(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number and the rows of every remaining step."""
        by_length = self.settings.batches == "similar-lengths"
        lengths = self.examples.lengths if by_length else None
        rows = batches(self.settings, self.examples.sizes, lengths)
        return itertools.islice(enumerate(rows), self.position.step, self.steps)

    def _tokenize(
        self, batch: tuple[int, np.ndarray]
    ) -> tuple[list[list[str]], list[TokenizedSide]]:
        """Return a step's texts by column, and the tokenised sides of this process's share."""
        rows = batch[1].tolist()
        columns = [[column[row] for row in rows] for column in self.examples.columns]
        return columns, self.encoder.tokenize(self.processes.share(columns))

    def _record_step(self, figures: np.ndarray, step: int) -> None:
        """Record a step's loss and gradient norm; an infinite loss or NaN ends the run."""
        loss, norm = figures.tolist()
        if not math.isfinite(loss):
            raise PromptcliError(
                f"the loss at step {step + 1} is not a number; try a lower learning rate"
            )
        self._losses.append(loss)
        self._advance(1)
        shown = f"loss {loss:.4f}"
        if self.dev_scores:
            shown += f"  best {self.best.value:.2f}"
        describe(self._advance, shown)
        rate = learning_rate(self.settings, step, self.steps, self.settings.learning_rate)
        for watcher in self.watchers:
            watcher.on_step(step + 1, {"loss": loss, "learning_rate": rate, "gradient_norm": norm})

    def gradients(
        self,
        step: int,
        columns: Columns,
        sides: Sides | None = None,
    ) -> Tensor:
        """Compute the gradients of a step (from 0) and return the loss, still on the device.

        If memory runs out, a lone process repeats the step with gradient caching and passes half as
        large, and keeps both; several processes end. ``columns``: the texts of the complete batch
        of all processes; ``sides``: this process's sides, if already tokenised.
        """
        encoder = self.encoder
        processes = self.processes
        problem = f"out of memory at step {step + 1}"
        while True:
            try:
                return self._gradients_once(step, columns, sides)
            except Exception as error:
                if not is_out_of_memory(error):
                    # its classes are imported on use
                    if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
                        raise
                    first, *_ = str(error).splitlines() or [type(error).__name__]
                    raise UsageError(
                        f"torch cannot compile {encoder.backbone.name!r} here"
                        f" ({one_line(first, _CHARACTERS_SHOWN)}); leave it out",
                        parameter="compile",
                    ) from None
            tokens = encoder.chunk_tokens // 2
            if processes.number > 1:  # no retry alone: the others are waiting for its vectors
                raise OutOfMemoryError(
                    f"{problem} in process {processes.index}; set gradient-caching and"
                    f" chunk-tokens {tokens} in every process"
                )
            if tokens < _LEAST_TOKENS:
                raise OutOfMemoryError(
                    f"{problem} even with {encoder.chunk_tokens} tokens per pass; set a smaller"
                    " batch size"
                )
            encoder.caching = True
            encoder.backbone.compile(on=False)  # caching repeats a pass, with the same dropout
            encoder.chunk_tokens = tokens
            note(f"{problem}: gradient caching from now on, {tokens} tokens per pass")

    def _gradients_once(self, step: int, columns: Columns, sides: Sides | None) -> Tensor:
        encoder = self.encoder
        processes = self.processes
        seed = (self.settings.seed * PRIME + step + _STRIDE * processes.index) % 2**32
        _seed_generators(seed, torch.device(processes.device))
        if not encoder.training:
            encoder.train()
        for parameter in self.parameters.values():
            parameter.grad = None
        with processes.autocast():
            views = encoder(processes.share(columns), sides)
        # every process has the loss of the complete batch, with gradient through its own vectors
        joined = [processes.join(view, len(columns[0])) for view in views]
        loss = encoder.objective.loss(joined, columns)
        shown = loss.detach()
        if encoder.mlm_head is not None:
            _, predictions = encoder.mlm_sums
            masked_lm = encoder.masked_lm_loss(step, processes.total(predictions))
            # the loss gets this process's share: gradients are added up
            loss = loss + masked_lm
            shown = shown + processes.total(masked_lm)
        # torch's own call will do: bfloat16 needs no scaled loss, a step accumulates nothing, and
        # the processes add up their gradients below
        loss.backward()  # type: ignore[no-untyped-call]
        # every process has the complete gradient of the loss's inputs: their sum must count it once
        for parameter in self.loss_parameters:
            if parameter.grad is not None:
                parameter.grad /= processes.number
        processes.add_gradients(self.parameters.values())
        return shown

    def apply_gradients(self) -> Tensor:
        """Clip the gradients and take the optimiser's step; return their norm before."""
        try:
            norm = clip_grad_norm_(self.view_parameters.values(), CLIP)
            if self.loss_parameters:  # clipped apart: neither shrinks the other's steps
                clip_grad_norm_(list(self.loss_parameters), CLIP)
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

    def _is_scored(self, done: int) -> bool:
        """Return whether the encoder is scored, and its state kept, after ``done`` steps."""
        if done == self.steps and (self.settings.scored == "also-ends" or not self.dev_scores):
            return True
        return done % self.settings.eval_steps == 0

    def _score(self) -> None:
        """Score the encoder on the development set and log the score; keep its weights if they are
        the best so far (on ties, the earlier).
        """
        encoder = self.encoder
        position = self.position
        encoder.eval()
        value = value_on(encoder.as_encoder(for_development=True), self.development)
        if not math.isfinite(value):
            value = 0.0  # equal vectors for all sentences rank nothing
        seconds = position.seconds - (self.dev_scores[-1].seconds if self.dev_scores else 0.0)
        with torch.no_grad():
            scalars = encoder.objective.learned_scalars()
            learned = {scalar.name: float(scalar.value) for scalar in scalars}
        score = DevScore(
            step=position.step,
            loss=float(np.mean(self._losses)) if self._losses else None,
            value=value,
            best=all(value > score.value for score in self.dev_scores),
            seconds=position.seconds,
            rate=(position.seen - self._scored_at) / seconds if seconds > 0 else None,
            learned=learned,
        )
        self.dev_scores.append(score)
        self._scored_at = position.seen
        self._losses = []
        if not self.processes.is_main:
            return
        if score.best:
            with atomic_path(self.best_weights) as temporary:
                save_tensors(encoder.tensors(), temporary, sealed=True)
        with self.log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(dataclasses.asdict(score)) + "\n")
        note(self._score_line(score))
        for watcher in self.watchers:
            watcher.on_score(score)

    def _score_line(self, score: DevScore) -> str:
        shown = [f"step {score.step}/{self.steps}"]
        if score.loss is not None:
            shown.append(f"loss {score.loss:.4f}")
        shown.append(f"{self.development.label} {score.value:.2f}{' *' if score.best else ''}")
        shown += [f"{name} {value:.4f}" for name, value in score.learned.items()]
        if score.rate is not None:
            shown.append(f"{score.rate:.0f} examples/s")
        return "  ".join(shown)


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


def stalled(scores: Sequence[DevScore], patience: int) -> bool:
    """Return whether none of the last ``patience`` scores was a new best; False if ``patience``
    is 0.
    """
    return 0 < patience < len(scores) and not any(score.best for score in scores[-patience:])


def learning_rate(settings: TrainingSettings, step: int, steps: int, peak: float) -> float:
    """Return the learning rate of step ``step`` (from 0) of ``steps``: a linear warm-up from 0 to
    ``peak``, then constant, or linear decay to 0.
    """
    warm = min(settings.warmup_steps or math.ceil(settings.warmup * steps), steps)
    if step < warm:
        return peak * step / warm
    if settings.schedule == "constant":
        decay = 0.0
    else:
        decay = (step - warm) / max(1, steps - warm)
    return peak * (1 - decay)
