"""The door of pre-training: pre-train a small BERT on plain text, or adapt one to it.

It imports nothing heavy, since the command line reads it: its function imports the work.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from promptcli.data.given import check_arguments
from promptcli.notes import without_network

Setting = str | int | float | bool  #: a value of a setting


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained model."""

    folder: Path  #: a backbone, with its card and log
    figures: dict[str, object]  #: parameters, steps, tokens, speed; JSON-ready


@check_arguments
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
    **settings: Setting,
) -> Pretrained:
    """Pre-train a small BERT on plain text.

    Its lower-casing WordPiece vocabulary is trained on the same text. An earlier model can be
    adapted to the text instead. The folder is a backbone afterwards: `promptcli embed file.txt
    --backbone FOLDER`.

    Args:
        files: Plain text, one sentence or paragraph a line.
        output: Folder of the model.
        unrelated: Further file, whose lines are in no order; repeatable.
        start: Start from a BERT that this command made (``mini-bert``, a folder): its vocabulary,
            shape and weights.
        templates: For bag-of-words: templates, one a line, with [X] and [MASK]. Default: 49 that
            come with promptcli.
        resume: Resume the unfinished run in the folder; it ends with the weights of a run that was
            never killed.
        device: ``auto``, ``cpu``, ``cuda``, ...
        offline: Never use the network.
        command: What was typed, for the card.
        settings: Fields of ``pretraining.plan.Plan``: ``tokens=10**7``, ``layers=4``,
            ``width=256``, ...

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
    from promptcli.errors import UsageError, unknown
    from promptcli.evaluation.evaluator import kept_random_states
    from promptcli.pretraining.batches import DEFAULT_TEMPLATES
    from promptcli.pretraining.corpus import CorpusFile
    from promptcli.pretraining.plan import BAGS, Plan
    from promptcli.pretraining.run import PretrainingRun
    from promptcli.pretraining.start import Start
    from promptcli.storage.files import sha256

    with without_network(offline):
        known = [item.name for item in dataclasses.fields(Plan) if "help" in item.metadata]
        for name in settings:
            if name not in known:
                raise unknown("setting", name, known)
        if not settings.get("tokens"):
            raise UsageError("give the budget of the run: `tokens` N")
        begun = None
        if start:
            begun = Start.open(start)
        plan = Plan(**settings)  # type: ignore[arg-type]
        if templates and plan.objective != BAGS:
            raise UsageError(f"`templates` needs `objective` {BAGS}")
        taught = None
        if plan.objective == BAGS:
            taught = Path(templates or DEFAULT_TEMPLATES)
        if isinstance(files, str | Path):
            files = [files]
        corpus = [CorpusFile(Path(file)) for file in files]
        corpus += [CorpusFile(Path(file), True) for file in unrelated]
        hashes = []
        for file in corpus:
            next(file.lines(), None)  # wrong files are refused before the work
            kind = " unrelated" if file.unrelated else ""
            hashes.append(sha256(file.path) + kind)
        plan = dataclasses.replace(plan, files=tuple(hashes))
        if taught is not None:
            next(CorpusFile(taught).lines(), None)
            plan = dataclasses.replace(plan, templates=sha256(taught))
        if begun is not None:
            plan = begun.plan(plan)
        run = PretrainingRun(corpus, Path(output), plan, begun, taught)
        with kept_random_states():
            figures = run.run(device, command=command, resume=resume)
        return Pretrained(run.output, figures)
