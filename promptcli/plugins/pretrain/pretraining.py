"""A complete pre-training run: its vocabulary, corpus, start, steps, backbone and record."""

import contextlib
import dataclasses
import itertools
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from promptcli import errors, notes
from promptcli.backbones import devices
from promptcli.backbones.language_models import ContinuedMaskedLM
from promptcli.data.training_data import stream_sentences
from promptcli.encoder.embeddings import prefetch
from promptcli.errors import PromptcliError, UsageError
from promptcli.evaluation import evaluator
from promptcli.notes import note
from promptcli.plugins.pretrain.batches import (
    DEFAULT_TEMPLATES,
    MaskedBatch,
    Step,
    batch_of_step,
    read_templates,
    steps,
)
from promptcli.plugins.pretrain.corpus import Corpus, make_corpus
from promptcli.plugins.pretrain.plan import BAGS, Plan
from promptcli.plugins.pretrain.start import NewBert, open_start
from promptcli.settings import list_of_names
from promptcli.storage import files as storage
from promptcli.storage.cache import library_versions
from promptcli.storage.runs import RunFolder, RunProgress, load_state, save_state, truncate_log
from promptcli.storage.typed_documents import to_json
from promptcli.training.step import MAX_GRADIENT_NORM, RUN_SEED_STRIDE, DeferredMetrics

_LOG_EVERY = 20  # steps between two lines of the log, which hold the means of these steps
_SECONDS_TO_SAVE = 60.0  # shortest time between two written states
_BETAS = (0.9, 0.98)
_EPSILON = 1e-6
_STATE = "state.safetensors"  # the last checkpoint of a run
_RECORD = "pretraining.json"  # written last
_MAX_UNKNOWN_SHARE = 0.05  # of the tokens; a vocabulary of the same text leaves fewer unknown


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained model."""

    folder: Path  #: a backbone, with its record and log
    figures: dict[str, object]  #: parameters, steps, tokens, speed; JSON-ready


def pretrain(
    files: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    unrelated: Sequence[str | Path] = (),
    start: str | None = None,
    templates: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    offline: bool = False,
    command: str = "pc.pretrain(...)",
    **settings: Any,
) -> Pretrained:
    """Pre-train a small BERT on plain text, or continue a masked language model.

    The lower-casing WordPiece vocabulary of a new BERT is trained on the same text. A model that
    others made keeps its tokenizer, shape and head. The folder becomes a backbone: ``promptcli
    embed file.txt --backbone FOLDER``.

    Args:
        files: Plain text, one sentence or paragraph on each line.
        output: Folder of the model.
        unrelated: Further files, whose lines are in no order.
        start: Continue a masked language model that has a head (``mini-bert``, a folder, a hub
            id), with its vocabulary, shape and weights.
        templates: For bag-of-words: a file with a template on each line, which has [X] and [MASK].
            Default: 49 templates that come with promptcli.
        resume: Resume the run in the folder, if there is one. It ends with the weights of a run
            that was never stopped.
        device: ``auto``, ``cpu``, ``cuda``, ...
        offline: Never use the network.
        command: The typed command, which the record keeps.
        settings: Fields of ``Plan``: ``tokens`` (the budget, required), ``layers``, ``width``,
            ``learning_rate``, ...

    Raises:
        UsageError: Settings that exclude each other, a file that is not text, or a folder with
            other content.
        NotFoundError: A file or a model is missing.
        PromptcliError: The loss became infinite or NaN.

    Example:
        >>> import promptcli as pc
        >>> made = pc.pretrain("sentences.txt", "my-bert", tokens=10**7)  # doctest: +SKIP
        >>> made.figures["parameters"]  # doctest: +SKIP
    """
    known = {item.name: item for item in dataclasses.fields(Plan) if "help" in item.metadata}
    for name in settings:
        errors.look_up("setting", name, known)
    if not settings.get("tokens"):
        raise UsageError("must be given: the budget of the run", parameter="tokens")
    with notes.without_network(offline), evaluator.keep_random_states():
        initial = open_start(start) if start else NewBert()
        unrelated_files = list(map(Path, unrelated))
        all_files = [*map(Path, list_of_names(files)), *unrelated_files]
        hashes = []
        for file in all_files:
            mark = " unrelated" if file in unrelated_files else ""
            hashes.append(_hash_of_text(file) + mark)
        plan = dataclasses.replace(initial.plan(settings), files=tuple(hashes))
        templates_file = None
        if plan.objective == BAGS:
            templates_file = Path(templates or DEFAULT_TEMPLATES)
            plan = dataclasses.replace(plan, templates=_hash_of_text(templates_file))
        elif templates:
            raise UsageError(f"needs the objective {BAGS}", parameter="templates")
        output = Path(output)
        device = devices.choose_device(device)
        with _run_folder(output, plan, resume=resume) as work:
            vocabulary = initial.vocabulary(work, all_files, plan.vocab_size)
            read = () if templates_file is None else read_templates(templates_file, vocabulary)
            corpus = make_corpus(work, all_files, unrelated_files, vocabulary, read)
            figures = _train(initial, plan, corpus, work, output, device)
            record = {
                "command": command,
                "versions": library_versions(),
                "figures": figures,
                "settings": dataclasses.asdict(plan),
            }
            storage.write_text(output / _RECORD, to_json(record))
    return Pretrained(output, figures)


def _hash_of_text(file: Path) -> str:
    """Return the hash of a file; raise UsageError if it is not text."""
    next(stream_sentences(file), None)
    return storage.sha256(file)


@contextlib.contextmanager
def _run_folder(output: Path, plan: Plan, *, resume: bool) -> Iterator[Path]:
    """Yield the folder of a run, new or resumed, locked against other processes."""
    folder = RunFolder(output / "work")
    if output.exists() and not folder.has_begun:
        if not output.is_dir() or set(output.iterdir()) - {folder.folder, folder.lock}:
            raise UsageError(f"{output} is not empty; give another folder", parameter="output")
    with folder.claim(f"the pre-training of {output}", "give another output"):
        folder.open(
            dataclasses.asdict(plan),
            resume=resume,
            name=output,
            elsewhere="delete it, or give another output",
        )
        try:
            yield folder.folder
        except UsageError:
            if not (folder.folder / _STATE).exists():  # no step is lost
                folder.discard()
            raise


def _train(
    initial: NewBert, plan: Plan, corpus: Corpus, work: Path, output: Path, device: str
) -> dict[str, object]:
    """Train on a corpus, from the state in the folder ``work`` if there is one; write the backbone
    to the folder ``output``, and return the figures of the run.
    """
    if len(corpus.tokens) < plan.batch_tokens:
        raise UsageError(
            f"{plan.batch_tokens:,} are more than the {len(corpus.tokens):,} tokens of the corpus;"
            " give more text",
            parameter="batch_tokens",
        )
    note(f"corpus: {len(corpus.tokens):,} tokens in {len(corpus.ends):,} lines")
    if corpus.unknown > _MAX_UNKNOWN_SHARE:
        reason = "the vocabulary was made from other text or another script"
        note(f"{corpus.unknown:.0%} of the tokens are [UNK]: {reason}")
    state = work / _STATE
    model = initial.model(plan, corpus, device, resumed=state.exists())
    with (
        errors.if_stopped("resume=True continues the run from its last checkpoint"),
        notes.stage("pretrain", plan.tokens) as advance,
    ):
        end = Pretrainer(plan, device, model).train(corpus, state, output / "log.jsonl", advance)
    initial.save_tokenizer(work, output, plan)
    model.save(output, dropout=plan.dropout)
    return {
        "parameters": sum(map(torch.numel, model.parameters.values())),
        "steps": end.step,
        "tokens": end.seen,
        "minutes": round(end.seconds / 60, 1),
        "tokens_per_second": round(end.seen / end.seconds) if end.seconds else None,
    }


class Pretrainer:
    """A model in pre-training.

    The plan and the number of a step determine what the step reads and draws. A resumed run
    therefore ends with the same weights, bit by bit.
    """

    def __init__(self, plan: Plan, device: str, model: ContinuedMaskedLM) -> None:
        self.plan = plan
        self.device = device
        self.model = model
        weights = model.parameters.values()
        groups: list[dict[str, Any]] = [
            {"params": [weight for weight in weights if weight.dim() > 1]},
            # biases and layer norms do not decay
            {"params": [weight for weight in weights if weight.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=plan.learning_rate,
            betas=_BETAS,
            eps=_EPSILON,
            weight_decay=plan.weight_decay,
            fused=True,
        )
        self._sums = np.zeros(3)  # loss, right guesses, predictions since the last report

    def train(self, corpus: Corpus, state: Path, log: Path, advance: notes.Advance) -> RunProgress:
        """Train to the end of the token budget, from the state on disk if there is one.

        ``state`` is written every minute and at the end; ``advance`` takes the tokens seen.
        """
        progress = RunProgress()
        if state.exists():
            progress = load_state(state, self.model.parameters, self.optimizer)
        truncate_log(log, progress.step)
        advance(progress.seen)
        reported = progress
        saved = began = time.perf_counter()
        metrics = DeferredMetrics(self._record)
        remaining = itertools.islice(steps(self.plan, corpus), progress.step, None)
        # another thread prepares the next step's batch while this one computes
        for step, batch in prefetch(lambda step: batch_of_step(step, self.plan, corpus), remaining):
            metrics.add(self.take_step(step, batch), step)
            now = time.perf_counter()
            progress = RunProgress(
                progress.step + 1, progress.seen + step.tokens, progress.seconds + now - began
            )
            began = now
            if progress.step % _LOG_EVERY == 0:
                metrics.read()
                self._report(reported, progress, log, advance)
                reported = progress
                if now - saved > _SECONDS_TO_SAVE:
                    saved = now
                    self.save(state, progress)
                began = time.perf_counter()
        metrics.read()
        self.save(state, progress)
        return progress

    def save(self, state: Path, progress: RunProgress) -> None:
        save_state(state, self.model.parameters, self.optimizer, progress)

    def take_step(self, step: Step, batch: MaskedBatch) -> Tensor:
        """Take a step: compute the gradients, clip them, and change the weights.

        Return the loss, the number of right first guesses, and the number of predictions, (3,).
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.learning_rate_at(step.seen + step.tokens)
        torch.manual_seed(self.plan.seed * RUN_SEED_STRIDE + step.number)
        self.optimizer.zero_grad()
        try:
            loss, right = self.model.loss(batch.on(self.device), dropout=step.dropout)
            loss.backward()  # type: ignore[no-untyped-call]
        except (MemoryError, RuntimeError) as error:
            if not errors.is_out_of_memory(error):
                raise
            raise errors.OutOfMemoryError(
                f"out of memory on {self.device}; give fewer tokens a step",
                parameter="batch_tokens",
            ) from None
        nn.utils.clip_grad_norm_(self.model.parameters.values(), MAX_GRADIENT_NORM)
        self.optimizer.step()
        predictions = torch.full_like(loss, len(batch.gold), requires_grad=False)
        return torch.stack([loss.detach(), right.float(), predictions])

    def _record(self, metrics: np.ndarray, step: Step) -> None:
        """Add the metrics of a step to the next report; raise PromptcliError if the loss is
        infinite or NaN.
        """
        loss, right, predictions = metrics.tolist()
        if not math.isfinite(loss):
            raise PromptcliError(
                f"the loss at step {step.number + 1} is not a number; try a lower one",
                parameter="learning_rate",
            )
        self._sums += (loss * predictions, right, predictions)

    def _report(
        self, reported: RunProgress, progress: RunProgress, log: Path, advance: notes.Advance
    ) -> None:
        """Log and show the means of the steps since the last report."""
        loss, right, predictions = self._sums.tolist()
        self._sums = np.zeros(3)
        seen = progress.seen - reported.seen
        report = {
            "step": progress.step,
            "seen": progress.seen,
            "loss": loss / predictions,
            "accuracy": right / predictions,
            "learning_rate": self.plan.learning_rate_at(progress.seen),
            "rate": seen / (progress.seconds - reported.seconds),
            "seconds": progress.seconds,
        }
        with log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(report) + "\n")
        advance(seen)
        notes.describe(advance, f"loss {report['loss']:.3f}  accuracy {report['accuracy']:.1%}")
