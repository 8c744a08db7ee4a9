"""The steps of a run: a method at work on a backbone, its gradients within memory, development scores, checkpoints.

A run's folder holds ``state.safetensors`` (weights, moments, position), ``best.safetensors`` (the weights of the best
development score) and ``log.jsonl`` (a development score a line).
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from accelerate.utils import set_seed
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor, nn

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.lora import ALPHA
from promptcli.data.sources import TrainingExamples
from promptcli.data.tasks import STSTask
from promptcli.encoder.encoder import TUNED, Encoder
from promptcli.errors import OutOfMemoryError, PromptcliError, UsageError
from promptcli.evaluation.evaluator import spearman_on
from promptcli.notes import Advance, describe, note, working
from promptcli.storage.files import atomic_path
from promptcli.storage.runs import Position, read_log, truncate_log
from promptcli.storage.tensors import load_tensors, save_tensors
from promptcli.training.batches import batch_lengths, batches, steps_of
from promptcli.training.loop import CLIP, Loop, Planned
from promptcli.training.methods.method import Method, keeps_head
from promptcli.training.methods.training_settings import LoRASettings, MaskedLMSettings, TrainingSettings
from promptcli.training.objectives import find_objective
from promptcli.training.optimizers import OPTIMIZERS
from promptcli.training.processes import Processes
from promptcli.training.teacher import SentenceVectors
from promptcli.training.trainable_encoder import TokenizedView, TrainableEncoder

_PRIME = 1_000_003  # spreads seeds, so that no two runs share a step's dropout
_STRIDE = 7_919  # spreads them over processes
_LEAST_TOKENS = 64  # of a pass, when memory runs out
_EVERY = 100  # steps by which lambda decays by its factor


@dataclass(frozen=True)
class DevScore:
    """A score on the development set during training."""

    step: int  #: steps done
    loss: float | None  #: mean training loss since the last score; None at the start
    value: float  #: Spearman x 100
    best: bool  #: the best so far
    seconds: float  #: spent in steps
    rate: float | None  #: examples per second since the last score


class Learner(TrainableEncoder):
    """A method at work on a backbone: an encoder in training and the method's objective."""

    def __init__(
        self,
        method: Method,
        settings: TrainingSettings,
        backbone: Backbone,
        models: Mapping[str, SentenceVectors] = MappingProxyType({}),
    ) -> None:
        objective = find_objective(method)
        generator = torch.Generator().manual_seed(settings.seed)
        super().__init__(method, settings, backbone, generator, models)
        self.objective = objective(settings, self, generator)

    def tokenize(self, columns: Sequence[Sequence[str]]) -> list[TokenizedView]:
        return self.tokenize_sides(self.objective.sides(columns))

    def forward(
        self, columns: Sequence[Sequence[str]], sides: Sequence[TokenizedView] | None = None
    ) -> tuple[Tensor, ...]:
        """Return the objective's views of n examples, given as texts by column; ``sides``: already tokenised."""
        self.mlm_sums = torch.zeros(2, device=self.backbone.device)
        return self.objective.views(self, self.tokenize(columns) if sides is None else sides, columns)

    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the tensors that learn, by the names they are stored under."""
        modules: dict[str, nn.Module | None] = {
            "projection": self.head,
            "objective": self.objective,
            "mlm": self.mlm_head,
            TUNED.rstrip("."): self.model if {"backbone", "adapter"} & set(self.method.learns) else None,
        }
        trainable = self.learned()
        for prefix, module in modules.items():
            for name, parameter in () if module is None else module.named_parameters():
                if parameter.requires_grad:
                    trainable[f"{prefix}.{name}"] = parameter
        return trainable

    def tensors(self) -> dict[str, Tensor]:
        """Return copies of an entry's tensors: prompt, kept head, and the tuned or added weights of the backbone."""
        fixed = {name for name, parameter in self.model.named_parameters() if not parameter.requires_grad}
        model = self.model.state_dict() if "backbone" in self.method.learns else {}
        model = {name: tensor for name, tensor in model.items() if name not in fixed}
        if isinstance(self.settings, LoRASettings):
            learned = {name: tensor for name, tensor in self.model.named_parameters() if tensor.requires_grad}
            model = {**learned, ALPHA: torch.tensor(float(self.settings.lora_alpha))}
        tensors = self._outside() | {f"{TUNED}{name}": tensor for name, tensor in model.items()}
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.trainable().items():
                if name in tensors and tensors[name].shape == parameter.shape:
                    parameter.copy_(tensors[name])

    def _outside(self) -> dict[str, Tensor]:
        head = self.head.named_parameters() if keeps_head(self.settings) else ()
        tensors = self.learned() | {f"projection.{name}": parameter for name, parameter in head}
        return {name: parameter.detach() for name, parameter in tensors.items()}

    def encoder(self, *, selecting: bool = False) -> Encoder:
        """Return the current encoder, on the same backbone; ``selecting``: as the development score reads it."""
        family = self.backbone.provenance.family
        recipe = self.method.recipe(self.backbone.name, family, self.settings)
        if selecting:
            recipe = self.method.selecting(recipe, self.settings, family)
        return Encoder(recipe, self.backbone, self._outside())


@dataclass(frozen=True)
class TrainedWeights:
    """The result of a run's steps."""

    tensors: dict[str, Tensor]  #: of the best development score, by name
    dev_scores: list[DevScore]  #: all of the run, in order; the first is the start
    steps: int
    seconds: float  #: spent in steps

    @property
    def best(self) -> DevScore:
        return [score for score in self.dev_scores if score.best][-1]


class Trainer(Loop[tuple[int, np.ndarray]]):
    """Trains a new learner, alone or as one of several processes. A step's item is its number and its rows."""

    def __init__(self, learner: Learner, processes: Processes) -> None:
        self.learner, self.processes = learner, processes
        self.settings: TrainingSettings = learner.settings
        self.parameters = learner.trainable()
        self.optimizer = OPTIMIZERS[self.settings.optimizer](
            self.parameters, self.settings.learning_rate, self.settings.weight_decay
        )
        self.dev_scores: list[DevScore] = []
        self._losses: list[float] = []  # since the last score
        self._scored_at = 0  # examples seen at the last score
        self._advance: Advance = lambda done: None

    def train(self, examples: TrainingExamples, development: STSTask, folder: Path) -> TrainedWeights:
        """Train to the end of the settings, from the state in ``folder`` if there is one."""
        self.processes.check(batch_lengths(self.settings, examples.sizes))
        self.examples, self.development, self.folder = examples, development, folder
        self.steps = steps_of(self.settings, examples.sizes)
        position = self._resumed()
        with working(f"train {self.learner.method.name}", self.steps) as self._advance:
            self._advance(position.step)
            position = self.run(position, folder / "state.safetensors")
        self.processes.wait()
        best = load_tensors(folder / "best.safetensors", hint=f"delete {folder} and start again", error=UsageError)
        return TrainedWeights(best, self.dev_scores, position.step, position.seconds)

    def _resumed(self) -> Position:
        """Return the position to start from; a new run begins with the score of the start."""
        state, log = self.folder / "state.safetensors", self.folder / "log.jsonl"
        begun = state.exists()
        self.processes.wait()  # before the main process writes anything
        position = self.load(state) if begun else Position()
        self.dev_scores = read_log(log, DevScore, until=position.step) if begun else []
        self._scored_at = position.seen
        self.processes.wait()  # until all have read it
        if self.processes.is_main:
            truncate_log(log, position.step if begun else -1)
        if not begun and self.settings.scored == "also-ends":
            self._score(position)
        return position

    def planned(self, position: Position) -> Iterator[Planned[tuple[int, np.ndarray]]]:
        examples = self.examples
        rows = enumerate(batches(self.settings, examples.sizes, examples.lengths))
        for item in itertools.islice(rows, position.step, self.steps):
            yield Planned(item, len(item[1]), learning_rate(self.settings, item[0], self.steps))

    def read(self, item: tuple[int, np.ndarray]) -> tuple[list[list[str]], list[TokenizedView]]:
        columns = [[column[row] for row in item[1]] for column in self.examples.columns]
        return columns, self.learner.tokenize(self.processes.share(columns))

    def stopped(self) -> bool:
        return stalled(self.dev_scores, self.settings.patience)

    def compute(self, item: tuple[int, np.ndarray], inputs: Any) -> Tensor:
        return self.gradients(item[0], *inputs)

    def took(self, figures: Any, item: tuple[int, np.ndarray], rate: float) -> None:
        """Record the loss of a step; a loss that is not a number ends the run."""
        loss, step = float(figures), item[0] + 1
        if not math.isfinite(loss):
            raise PromptcliError(f"the loss at step {step} is not a number; try a lower `learning_rate`")
        self._losses.append(loss)
        self._advance(1)
        best = [score.value for score in self.dev_scores if score.best][-1:]
        describe(self._advance, f"loss {loss:.4f}" + "".join(f"  best {value:.2f}" for value in best))

    def gradients(
        self, number: int, columns: Sequence[Sequence[str]], sides: Sequence[TokenizedView] | None = None
    ) -> Tensor:
        """Put the gradients of step ``number`` (from 0) in place and return the loss, still on the device.

        If memory runs out the step is done again, with gradient caching and passes half as large. ``columns``: the
        texts of the complete batch of all processes; ``sides``: the views of this process, if tokenised already.
        """
        learner, problem = self.learner, f"out of memory at step {number + 1}"
        while True:
            try:
                return self._gradients(number, columns, sides)
            except Exception as error:
                if not should_reduce_batch_size(error):
                    raise
                tokens = learner.chunk_tokens // 2
                if self.processes.number > 1:  # the others wait for this one's vectors
                    tried = f"in process {self.processes.index}; give all `gradient_caching`, `chunk_tokens` {tokens}"
                    raise OutOfMemoryError(f"{problem} {tried}") from None
                if tokens < _LEAST_TOKENS:
                    tried = f"even with {learner.chunk_tokens} tokens a pass; take a smaller `batch_size`"
                    raise OutOfMemoryError(f"{problem} {tried}") from None
            learner.caching, learner.chunk_tokens = True, tokens
            note(f"{problem}: gradient caching from now on, {tokens} tokens a pass")

    def _gradients(
        self, number: int, columns: Sequence[Sequence[str]], sides: Sequence[TokenizedView] | None
    ) -> Tensor:
        learner, processes, settings = self.learner, self.processes, self.settings
        set_seed((settings.seed * _PRIME + number + _STRIDE * processes.index) % 2**32)
        learner.train()
        learner.zero_grad(set_to_none=True)
        with processes.autocast():
            views = learner(processes.share(columns), sides)
        joined = [processes.join(view, len(columns[0])) for view in views]
        loss = learner.objective.loss(joined, columns)
        value = loss.detach()
        if isinstance(settings, MaskedLMSettings) and settings.mlm_weight:
            weight = settings.mlm_weight * learner.method.mlm_decay ** (number / _EVERY)
            total, count = learner.mlm_sums
            predicted = processes.total(count).clamp(min=1)
            loss = loss + weight * total / predicted
            value = value + weight * processes.total(total) / predicted
        processes.accelerator.backward(loss)
        processes.add_gradients(self.parameters.values())
        return value

    def move(self) -> None:
        try:
            self.processes.accelerator.clip_grad_norm_(self.parameters.values(), CLIP)
            self.optimizer.step()
        except Exception as error:
            if not should_reduce_batch_size(error):
                raise
            count = sum(parameter.numel() for parameter in self.parameters.values())
            size = f"out of memory: {count:,} parameters learn, {16 * count / 1e9:.1f} GB with gradients and moments"
            raise OutOfMemoryError(f"{size}; take a smaller `backbone`, or a method such as dcpcse") from None

    def pauses(self, step: int) -> bool:
        last = step == self.steps and (self.settings.scored == "also-ends" or not self.dev_scores)
        return last or step % self.settings.eval_steps == 0

    def pause(self, position: Position) -> bool:
        self._score(position)
        return self.processes.is_main

    def _score(self, position: Position) -> None:
        """Score the learner; keep its weights if they are the best so far (strictly: ties keep the earlier)."""
        self.learner.eval()
        value = spearman_on(self.learner.encoder(selecting=True), self.development)
        if not math.isfinite(value):
            value = 0.0  # equal vectors for all sentences rank nothing
        before = self.dev_scores[-1].seconds if self.dev_scores else 0.0
        samples, elapsed = position.seen - self._scored_at, position.seconds - before
        score = DevScore(
            step=position.step,
            loss=float(np.mean(self._losses)) if self._losses else None,
            value=value,
            best=all(value > score.value for score in self.dev_scores),
            seconds=position.seconds,
            rate=samples / elapsed if elapsed > 0 else None,
        )
        self.dev_scores.append(score)
        self._scored_at, self._losses = position.seen, []
        if not self.processes.is_main:
            return
        if score.best:
            with atomic_path(self.folder / "best.safetensors") as temporary:
                save_tensors(self.learner.tensors(), temporary)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(dataclasses.asdict(score)) + "\n")
        shown = [f"step {score.step}/{self.steps}"]
        shown += [] if score.loss is None else [f"loss {score.loss:.4f}"]
        shown += [f"{self.development.label} {score.value:.2f}{' *' if score.best else ''}"]
        note("  ".join(shown if score.rate is None else [*shown, f"{score.rate:.0f} examples/s"]))


def stalled(scores: Sequence[DevScore], patience: int) -> bool:
    """Return whether none of the last ``patience`` scores is the best so far; never if it is 0."""
    return 0 < patience < len(scores) and not any(score.best for score in scores[-patience:])


def learning_rate(settings: TrainingSettings, step: int, steps: int) -> float:
    """Return the learning rate of step ``step`` (from 0) of ``steps``: a linear rise from 0, then ``schedule``."""
    warm = min(settings.warmup_steps or math.ceil(settings.warmup * steps), steps)
    if step < warm:
        return settings.learning_rate * step / warm
    decay = 0.0 if settings.schedule == "constant" else (step - warm) / max(1, steps - warm)
    return settings.learning_rate * (1 - decay)
