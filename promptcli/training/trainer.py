"""The training loop: batches, development scores, checkpoints and resuming.

The folder of a run holds three files. ``state.safetensors`` has the weights, the optimiser's
moments and the progress; it is written at every score, after some minutes without a score, and at
Ctrl-C and SIGTERM. ``best.safetensors`` has the weights of the best development score.
``log.jsonl`` has one development score a line.
"""

import dataclasses
import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from promptcli.backbones.backbone import Backbone
from promptcli.data.tasks import DevelopmentTask
from promptcli.data.training_data import TrainingExamples
from promptcli.encoder.embeddings import prefetch
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import PromptcliError
from promptcli.evaluation.evaluator import value_on
from promptcli.notes import Advance, describe, note, note_counts, stage
from promptcli.storage.files import atomic_path
from promptcli.storage.runs import (
    RunProgress,
    delay_interrupts,
    load_state,
    read_log,
    save_state,
    truncate_log,
)
from promptcli.storage.tensors import check_seal, load_tensors, save_tensors
from promptcli.training.methods.method import ConfiguredMethod, Method, TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.step import (
    DeferredMetrics,
    Processes,
    TokenizedBatch,
    TrainingStep,
    start_processes,
)
from promptcli.training.trainable_encoder import TrainableEncoder
from promptcli.training.watching import DevScore, Watcher

_SAVE_INTERVAL_S = 300.0  # longest time between two written states
_BATCHES_PER_SORT = 32  # number of batches whose rows are sorted by length together
_ORDER_STREAM = 7  # random stream of the order of an epoch
_SOURCE_STREAM = 8  # random stream of the order of a source


class Trainer:
    """Trains an encoder in one or several processes.

    The data, the settings, the step's number and the number of processes determine what a step
    reads and draws. On the same machine, a resumed run therefore ends with the same weights, bit by
    bit, unless memory ran out.
    """

    def __init__(
        self,
        encoder: TrainableEncoder,
        processes: Processes,
        examples: TrainingExamples,
        development: DevelopmentTask,
        folder: Path,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        self.encoder = encoder
        self.processes = processes
        self.examples = examples
        self.development = development
        self.watchers = watchers
        self.settings: TrainingSettings = encoder.settings
        self.steps = self.settings.total_steps(len(examples))
        if not self.settings.drop_last:
            processes.check(len(examples), self.settings.batch_size)
        self.step = TrainingStep(encoder, processes)
        self.log_path = folder / "log.jsonl"
        self.state_path = folder / "state.safetensors"
        self.best_weights = folder / "best.safetensors"
        self.start_again = f"delete {folder} and start again"
        self.progress = RunProgress()  #: after the last complete step
        self.sentence_count = 0  #: sentences tokenised for the steps of this process
        self.truncated_count = 0  #: sentences among them that were too long
        #: All scores of the run, in order; the start comes first if it is scored.
        self.dev_scores: list[DevScore] = []

    @property
    def best(self) -> DevScore:
        """The latest new best score."""
        return [score for score in self.dev_scores if score.best][-1]

    def fit(self) -> dict[str, Tensor]:
        """Train to the last step, or until ``patience`` ends; return the tensors of the best
        development score.

        A run with a state in the folder continues from it.
        """
        self._begin_or_resume()
        first_step = self.progress.step
        with stage(f"train {self.encoder.method.name}", self.steps) as advance:
            advance(first_step)
            metrics = DeferredMetrics(
                lambda pair, step: self._record_step(pair, *step, advance=advance)
            )
            try:
                self._take_steps(metrics)
                metrics.read()
                self._note_truncated()
            except KeyboardInterrupt:  # Ctrl-C or SIGTERM
                with delay_interrupts():
                    if self.progress.step > first_step:
                        metrics.read()
                        self._save()
                        note(f"the state after step {self.progress.step} of {self.steps} is kept")
                raise
        self.processes.wait()
        return load_tensors(self._sealed_best(), hint=self.start_again)

    def _take_steps(self, metrics: DeferredMetrics) -> None:
        step_began = last_saved = time.perf_counter()
        # another thread tokenises the next step's examples while this one computes
        for (number, rows), batch in prefetch(self._tokenize, self._batches()):
            if has_stalled(self.dev_scores, self.settings.patience):
                break
            groups = self.step.optimizer.param_groups
            for group in groups:
                group["lr"] = learning_rate(self.settings, number, self.steps, group["peak"])
            for truncated in {id(side.texts): side.truncated for side in batch.sides}.values():
                self.sentence_count += len(truncated)
                self.truncated_count += int(truncated.sum())
            loss = self.step.gradients(number, batch)
            with delay_interrupts():  # weights and progress belong to the same step
                norm = self.step.apply_gradients()
                metrics.add(torch.stack([loss, norm]), (number, groups[0]["lr"]))
                now = time.perf_counter()
                self.progress = dataclasses.replace(
                    self.progress,
                    step=number + 1,
                    seen=self.progress.seen + len(rows),
                    seconds=self.progress.seconds + now - step_began,
                )
            step_began = now
            is_scored = self._is_scored(number + 1)
            if is_scored or now - last_saved > _SAVE_INTERVAL_S:
                metrics.read()
                if is_scored:
                    self._note_truncated()
                    self._score()
                self._save()
                step_began = last_saved = time.perf_counter()  # scoring and saving are not timed

    def _note_truncated(self) -> None:
        """Note once, before the first score, how many sentences were too long and were cut."""
        if any(score.step for score in self.dev_scores):
            return
        limit = f"{self.settings.max_length} tokens (max-length)"
        note_counts(self.sentence_count, blank=0, truncated=self.truncated_count, limit=limit)

    def _sealed_best(self) -> Path:
        check_seal(self.best_weights, hint=self.start_again)
        return self.best_weights

    def _save(self) -> None:
        """Write the state of the last complete step, from which a run is resumed."""
        if self.processes.is_main:
            save_state(self.state_path, self.step.parameters, self.step.optimizer, self.progress)

    def _begin_or_resume(self) -> None:
        """Set the progress to start from; a new run may first score the start."""
        has_begun = self.state_path.exists()
        self.processes.wait()  # before the main process writes anything
        if has_begun:
            self.progress = load_state(self.state_path, self.step.parameters, self.step.optimizer)
            self.dev_scores = read_log(self.log_path, DevScore, until=self.progress.step)
            if any(score.best for score in self.dev_scores):
                self._sealed_best()  # report a damaged file now, not after the last step
            note(f"resumed after step {self.progress.step} of {self.steps}")
        self.processes.wait()  # until all processes have read the state
        step = self.progress.step
        if self.processes.is_main:
            truncate_log(self.log_path, step if has_begun else -1)
        is_due = self.settings.scored == "also-ends"  # a new run then scores the start
        if has_begun:  # the run may have stopped between a step and its score
            is_due = self._is_scored(step) and step not in {score.step for score in self.dev_scores}
        if is_due:
            self._score()

    def _batches(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the number and the rows of every remaining step."""
        by_length = self.settings.batches == "similar-lengths"
        lengths = self.examples.lengths if by_length else None
        rows = draw_batches(self.settings, self.examples.sizes, lengths)
        return itertools.islice(enumerate(rows), self.progress.step, self.steps)

    def _tokenize(self, numbered_rows: tuple[int, np.ndarray]) -> TokenizedBatch:
        rows = numbered_rows[1].tolist()
        return self.step.tokenize(
            [[column[row] for row in rows] for column in self.examples.columns]
        )

    def _record_step(
        self, loss_and_norm: np.ndarray, step: int, rate: float, *, advance: Advance
    ) -> None:
        """Record the loss and the gradient norm of a step; refuse a loss that is not a number."""
        loss, norm = loss_and_norm.tolist()
        if not math.isfinite(loss):
            raise PromptcliError(
                f"the loss at step {step + 1} is not a number; try a lower learning rate"
            )
        losses = (*self.progress.losses, loss)
        self.progress = dataclasses.replace(self.progress, losses=losses)
        advance(1)
        best = f"  best {self.best.value:.2f}" if self.dev_scores else ""
        describe(advance, f"loss {loss:.4f}{best}")
        for watcher in self.watchers:
            watcher.on_step(step + 1, {"loss": loss, "learning_rate": rate, "gradient_norm": norm})

    def _is_scored(self, done: int) -> bool:
        """Return whether the encoder is scored and its state written after ``done`` steps."""
        if done == self.steps and (self.settings.scored == "also-ends" or not self.dev_scores):
            return True
        return done % self.settings.eval_steps == 0

    def _score(self) -> None:
        """Score the encoder on the development set and log the score; keep its weights if the score
        is higher than all earlier ones.
        """
        encoder = self.encoder
        progress = self.progress
        encoder.eval()
        value = value_on(encoder.as_encoder(for_development=True), self.development)
        if not math.isfinite(value):
            value = 0.0  # if all sentences have equal vectors, nothing can be ranked
        seconds = progress.seconds - (self.dev_scores[-1].seconds if self.dev_scores else 0.0)
        with torch.no_grad():
            scalars = encoder.objective.learned_scalars()
            learned_values = {scalar.name: float(scalar.value) for scalar in scalars}
        score = DevScore(
            step=progress.step,
            loss=float(np.mean(progress.losses)) if progress.losses else None,
            value=value,
            best=all(value > score.value for score in self.dev_scores),
            seconds=progress.seconds,
            rate=(progress.seen - progress.scored_at) / seconds if seconds > 0 else None,
            learned=learned_values,
        )
        self.dev_scores.append(score)
        self.progress = dataclasses.replace(progress, scored_at=progress.seen, losses=())
        if not self.processes.is_main:
            return
        if score.best:
            with atomic_path(self.best_weights) as temporary:
                save_tensors(encoder.tensors(), temporary, sealed=True)
        with self.log_path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(dataclasses.asdict(score)) + "\n")
        note(self._score_line(score))
        for watcher in self.watchers:
            watcher.on_score(score)

    def _score_line(self, score: DevScore) -> str:
        figures = [f"step {score.step}/{self.steps}"]
        if score.loss is not None:
            figures.append(f"loss {score.loss:.4f}")
        figures.append(f"{self.development.label} {score.value:.2f}{' *' if score.best else ''}")
        figures += [f"{name} {value:.4f}" for name, value in score.learned.items()]
        if score.rate is not None:
            figures.append(f"{score.rate:.0f} examples/s")
        return "  ".join(figures)


def has_stalled(scores: Sequence[DevScore], patience: int) -> bool:
    """Return whether none of the last ``patience`` scores was a new best score.

    With a ``patience`` of 0 a training never stalls.
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


def source_shares(sizes: Sequence[int], temperature: float) -> list[int]:
    """Return the number of rows of each source in an epoch, in proportion to n^(1/T).

    The largest remainders are rounded up.
    """
    total = sum(sizes)
    weights = np.asarray(sizes, np.float64) ** (1 / temperature)
    exact = total * weights / weights.sum()
    shares = np.floor(exact).astype(int)
    shares[np.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
    return [int(share) for share in shares]


def draw_batches(
    settings: TrainingSettings, sizes: Sequence[int], lengths: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield the rows of each batch endlessly; the last batch of an epoch may be short.

    A source with fewer rows than its share starts over within the epoch; a source with more rows
    continues in the next epoch. Each pass over a source has a new order. If the ``lengths`` of all
    rows are given, the rows of a batch have similar lengths.
    """
    size = settings.batch_size
    shares = source_shares(sizes, settings.data_temperature)
    firsts = itertools.accumulate(sizes, initial=0)
    sources = [
        _again_and_again(settings.seed, number, range(first, first + rows))
        for number, (first, rows) in enumerate(zip(firsts, sizes, strict=False))
    ]
    for epoch in itertools.count():
        order = np.random.default_rng([settings.seed, _ORDER_STREAM, epoch])
        rows = order.permutation(sum(sizes))
        if shares != list(sizes):
            source_rows = map(itertools.islice, sources, shares)
            rows = np.array(list(itertools.chain.from_iterable(source_rows)))[rows]
        if lengths is not None:
            windows = _cut(rows, _BATCHES_PER_SORT * size)
            by_length = [window[lengths[window].argsort(kind="stable")] for window in windows]
            rows = np.concatenate(by_length)
        batches = _cut(rows, size)
        if lengths is not None:
            batches = [batches[number] for number in order.permutation(len(batches))]
        yield from (batch for batch in batches if len(batch) == size or not settings.drop_last)


def _again_and_again(seed: int, source: int, rows: range) -> Iterator[int]:
    """Yield the rows of a source endlessly, each time in a new order."""
    for number in itertools.count():
        yield from (
            np.random.default_rng([seed, _SOURCE_STREAM, source, number]).permutation(rows).tolist()
        )


def _cut(rows: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut the rows into batches; the last one may be short."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def train_encoder(
    method: Method,
    settings: TrainingSettings,
    examples: TrainingExamples,
    development: DevelopmentTask,
    backbone: Backbone,
    folder: Path,
    *,
    dtype: str = "float32",
) -> tuple[TorchEncoder, dict[str, Tensor]]:
    """Train a method on an opened backbone; a method that tunes the backbone changes it in place.

    Args:
        method: The method, unsupervised or supervised.
        settings: Its settings.
        examples: The training examples; those that its objective cannot read are left out.
        development: Pairs or queries that choose the best checkpoint.
        backbone: The backbone, on the device of the training.
        folder: Keeps the state; a stopped training continues from it.
        dtype: Precision of matrix products.

    Returns:
        The encoder of the best checkpoint, and its tensors.
    """
    objective = find_objective(method)
    usable_examples = objective.choose(examples, settings, backbone)
    processes = start_processes(str(backbone.device), dtype)
    configured = ConfiguredMethod(method, settings, backbone.name, backbone.provenance.family)
    encoder = TrainableEncoder(configured, backbone, objective)
    tensors = Trainer(encoder, processes, usable_examples, development, folder).fit()
    return encoder.load_encoder(tensors), tensors
