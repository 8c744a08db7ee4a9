"""A pre-training run from top to bottom: vocabulary, corpus, start, steps, the backbone and its
record.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from promptcli import errors, notes
from promptcli.backbones import devices
from promptcli.errors import UsageError
from promptcli.evaluation import evaluator
from promptcli.notes import note
from promptcli.plugins.pretrain.batches import DEFAULT_TEMPLATES, read_templates
from promptcli.plugins.pretrain.corpus import (
    Corpus,
    CorpusFile,
    Template,
    make_corpus,
)
from promptcli.plugins.pretrain.plan import BAGS, Plan
from promptcli.plugins.pretrain.start import NewBert, open_start
from promptcli.plugins.pretrain.trainer import Pretrainer
from promptcli.retrieval.found_files import list_of_names
from promptcli.storage import files as storage
from promptcli.storage import runs
from promptcli.storage.cache import library_versions
from promptcli.storage.typed_documents import to_json

_RECORD = "pretraining.json"  # written last
_MUCH_UNKNOWN = 0.05  # of the tokens; a vocabulary of the same text leaves less


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
    """Pre-train a small BERT on plain text, or go on with a masked language model.

    The lower-casing WordPiece vocabulary of a new BERT is trained on the same text. A model that
    others made keeps its tokenizer, shape and head. The folder is a backbone afterwards:
    ``promptcli embed file.txt --backbone FOLDER``.

    Args:
        files: Plain text, one sentence or paragraph a line.
        output: Folder of the model.
        unrelated: Further files, whose lines are in no order.
        start: Go on from a masked language model with its head (``mini-bert``, a folder, a hub id):
            its vocabulary, shape and weights.
        templates: For bag-of-words: templates, one a line, with [X] and [MASK]. Default: 49 that
            come with promptcli.
        resume: Resume the run in the folder, if there is one; it ends with the weights of a run
            that was never killed.
        device: ``auto``, ``cpu``, ``cuda``, ...
        offline: Never use the network.
        command: What was typed, for the record.
        settings: Fields of ``Plan``: ``tokens`` (the budget, which is needed), ``layers``,
            ``width``, ``learning_rate``, ...

    Raises:
        UsageError: Settings that do not go together, a file that is not text, or a folder that
            holds something else.
        NotFoundError: A file or a model is missing.
        PromptcliError: The loss is not a number.

    Example:
        >>> import promptcli as pc
        >>> made = pc.pretrain("sentences.txt", "my-bert", tokens=10**7)  # doctest: +SKIP
        >>> made.figures["parameters"]  # doctest: +SKIP
    """
    known = [item.name for item in dataclasses.fields(Plan) if "help" in item.metadata]
    for name in settings:
        if name not in known:
            raise errors.unknown("setting", name, known)
    if not settings.get("tokens"):
        raise UsageError("must be given: the budget of the run", parameter="tokens")
    with notes.without_network(offline), evaluator.keep_random_states():
        begun = open_start(start) if start else NewBert()
        plan = begun.plan(settings)
        if templates and plan.objective != BAGS:
            raise UsageError(f"needs the objective {BAGS}", parameter="templates")
        corpus = [CorpusFile(Path(file)) for file in list_of_names(files)]
        corpus += [CorpusFile(Path(file), True) for file in unrelated]
        hashes = [_identity(file) + (" unrelated" if file.unrelated else "") for file in corpus]
        plan = dataclasses.replace(plan, files=tuple(hashes))
        taught = None
        if plan.objective == BAGS:
            taught = CorpusFile(Path(templates or DEFAULT_TEMPLATES))
            plan = dataclasses.replace(plan, templates=_identity(taught))
        run = PretrainingRun(corpus, Path(output), plan, begun, taught)
        return Pretrained(run.output, run.run(device, command=command, resume=resume))


def _identity(file: CorpusFile) -> str:
    """Return the hash of a file; one that is not text is refused before the work."""
    next(file.lines(), None)
    return storage.sha256(file.path)


@dataclass(frozen=True)
class PretrainingRun:
    """The text, the settings and the folder of a run."""

    files: Sequence[CorpusFile]
    output: Path
    plan: Plan
    start: NewBert
    templates: CorpusFile | None = None

    def run(self, device: str, *, command: str, resume: bool) -> dict[str, object]:
        """Train to the end of the budget and write the model; return its figures."""
        device = devices.choose_device(device)
        folder = runs.RunFolder(self.output / "work")
        others = {folder.folder, folder.lock}
        if not folder.has_begun and self.output.exists():
            if not self.output.is_dir() or set(self.output.iterdir()) - others:
                raise UsageError(
                    f"{self.output} is not empty; give another folder", parameter="output"
                )
        with folder.claim(f"the pre-training of {self.output}", "give another output"):
            folder.open(
                dataclasses.asdict(self.plan),
                resume=resume,
                name=self.output,
                elsewhere="delete it, or give another output",
            )
            trainer, position = self._train(folder.folder, device)
            return self._finish(trainer, position, command)

    def _train(self, work: Path, device: str) -> tuple[Pretrainer, runs.Position]:
        """Train from the state in the run's folder, if there is one; return where it ended."""
        plan = self.plan
        state = work / "state.safetensors"
        corpus = self._corpus(work)
        model = self.start.model(plan, corpus, device, resumed=state.exists())
        trainer = Pretrainer(plan, device, model)
        with (
            errors.if_stopped("resume continues the run from its last checkpoint"),
            notes.stage("pretrain", plan.tokens) as advance,
        ):
            return trainer, trainer.train(corpus, state, self.output / "log.jsonl", advance)

    def _corpus(self, work: Path) -> Corpus:
        vocabulary = self.start.vocabulary(work, self.files, self.plan.vocab_size)
        templates: tuple[Template, ...] = ()
        if self.templates:
            templates = read_templates(self.templates, vocabulary)
        corpus = make_corpus(work, self.files, vocabulary, templates)
        if len(corpus.tokens) < self.plan.batch_tokens:
            raise UsageError(
                f"{self.plan.batch_tokens:,} are more than the {len(corpus.tokens):,} tokens of the"
                " corpus; give more text",
                parameter="batch_tokens",
            )
        note(f"corpus: {len(corpus.tokens):,} tokens in {len(corpus.ends):,} lines")
        if corpus.unknown > _MUCH_UNKNOWN:
            reason = "the vocabulary was made from other text or another script"
            note(f"{corpus.unknown:.0%} of the tokens are [UNK]: {reason}")
        return corpus

    def _finish(
        self, trainer: Pretrainer, position: runs.Position, command: str
    ) -> dict[str, object]:
        output = self.output
        self.start.save_tokenizer(output / "work", output, self.plan)
        trainer.model.save(output, dropout=self.plan.dropout)
        speed = round(position.seen / position.seconds) if position.seconds else None
        figures: dict[str, Any] = {
            "parameters": sum(map(torch.numel, trainer.parameters.values())),
            "steps": position.step,
            "tokens": position.seen,
            "minutes": round(position.seconds / 60, 1),
            "tokens_per_second": speed,
        }
        record = {
            "command": command,
            "versions": library_versions(),
            "figures": figures,
            "settings": dataclasses.asdict(self.plan),
        }
        storage.write_text(output / _RECORD, to_json(record))
        return figures
