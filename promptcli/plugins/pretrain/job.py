"""The public interface of pre-training: pre-train a small BERT on plain text, or adapt one to it.

It imports nothing heavy, since the command line reads it: its function imports the work.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from promptcli import errors, notes
from promptcli.errors import UsageError
from promptcli.jobs import Job, argument, function_of, option
from promptcli.notes import keyword
from promptcli.plugins.pretrain.plan import BAGS, Plan

Setting = str | int | float | bool  #: a value of a setting
#: Settings that have an option each; ``--set`` takes the others.
PLAIN = (
    "layers",
    "width",
    "heads",
    "positions",
    "vocab_size",
    "objective",
    "tokens",
    "batch_tokens",
    "learning_rate",
    "seed",
)


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained model."""

    folder: Path  #: a backbone, with its card and log
    figures: dict[str, object]  #: parameters, steps, tokens, speed; JSON-ready


@dataclass(frozen=True)
class PretrainJob(Job[Pretrained]):
    """Pre-train a small BERT on plain text, or go on with a masked language model.

    The lower-casing WordPiece vocabulary of a new BERT is trained on the same text. A model that
    others made keeps its tokenizer, shape and head. The folder is a backbone afterwards:
    `promptcli embed file.txt --backbone FOLDER`.

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

    further = "settings"

    files: str | Path | Sequence[str | Path] = argument(
        "Plain text, one sentence or paragraph a line.", metavar="FILES...", typed=list[str]
    )
    output: str | Path = option(..., "Folder of the model.", names="output o", typed=str)
    _: KW_ONLY
    unrelated: Sequence[str | Path] = option(
        (), "Further file, whose lines are in no order; repeatable."
    )
    start: str | None = option(
        None,
        "Go on from a masked language model with its head (`mini-bert`, a folder, a hub id): its"
        " vocabulary, shape and weights.",
        names="from",
        metavar="MODEL",
    )
    templates: str | Path | None = option(
        None,
        "For bag-of-words: templates, one a line, with [X] and [MASK]. Default: 49 that come with"
        " promptcli.",
    )
    resume: bool = option(
        False,
        "Resume the unfinished run in the folder; it ends with the weights of a run that was never"
        " killed.",
    )
    device: str = option("auto", "`auto`, `cpu`, `cuda`, ...", hidden=True)
    offline: bool = option(False, "Never use the network.", hidden=True)
    command: str = option("pc.pretrain(...)", "What was typed, for the card.", hidden=True)
    settings: Mapping[str, Setting] = option(
        {},
        "Fields of `pretraining.plan.Plan`, also as keywords: `tokens=10**7`, `layers=4`,"
        " `width=256`, ...",
        settings_of=Plan,
        only=PLAIN,
        panel="Run",
    )

    def run(self) -> Pretrained:
        from promptcli.evaluation import evaluator
        from promptcli.index.found_files import list_of_names
        from promptcli.plugins.pretrain.batches import DEFAULT_TEMPLATES
        from promptcli.plugins.pretrain.corpus import CorpusFile
        from promptcli.plugins.pretrain.run import PretrainingRun
        from promptcli.plugins.pretrain.start import ContinuedStart, Start
        from promptcli.storage import files

        with notes.without_network(self.offline):
            known = [item.name for item in dataclasses.fields(Plan) if "help" in item.metadata]
            for name in self.settings:
                if name not in known:
                    raise errors.unknown("setting", name, known)
            if not self.settings.get("tokens"):
                raise UsageError(f"give the budget of the run: {keyword('tokens')} N")
            start = None
            if self.start:
                start = Start.open(self.start)
            if isinstance(start, ContinuedStart):
                plan = start.plan(self.settings)
            else:
                plan = Plan(**self.settings)  # type: ignore[arg-type]
            if self.templates and plan.objective != BAGS:
                raise UsageError(f"{keyword('templates')} needs {keyword('objective')} {BAGS}")
            taught = None
            if plan.objective == BAGS:
                taught = Path(self.templates or DEFAULT_TEMPLATES)
            corpus = [CorpusFile(Path(file)) for file in list_of_names(self.files)]
            corpus += [CorpusFile(Path(file), True) for file in self.unrelated]
            hashes = []
            for file in corpus:
                next(file.lines(), None)  # wrong files are refused before the work
                kind = " unrelated" if file.unrelated else ""
                hashes.append(files.sha256(file.path) + kind)
            plan = dataclasses.replace(plan, files=tuple(hashes))
            if taught is not None:
                next(CorpusFile(taught).lines(), None)
                plan = dataclasses.replace(plan, templates=files.sha256(taught))
            if isinstance(start, Start):
                plan = start.plan(plan)
            run = PretrainingRun(corpus, Path(self.output), plan, start, taught)
            with evaluator.keep_random_states():
                figures = run.run(self.device, command=self.command, resume=self.resume)
            return Pretrained(run.output, figures)


pretrain = function_of(PretrainJob, "pretrain")
