"""The folder of a pre-training run: ``work`` while it runs, a backbone with a card when it is done."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from promptcli.backbones.devices import matrix_rate
from promptcli.backbones.loading import load_backbone
from promptcli.errors import UsageError
from promptcli.evaluation.perplexity import prediction_accuracy
from promptcli.pretraining.card import card, plot_loss
from promptcli.pretraining.corpus import CorpusFile
from promptcli.pretraining.loop import Report, Trainer
from promptcli.pretraining.plan import Plan
from promptcli.storage.files import write_text
from promptcli.storage.runs import Position, RunFolder, read_log

#: Written when all else is there.
_CARD = "README.md"


def open_run(output: Path, wanted: Plan, *, resume: bool) -> tuple[RunFolder, Plan]:
    """Return the work folder and the plan that holds: the stored one of an unfinished run, else the wanted one.

    Args:
        output: The model's folder.
        wanted: As asked for now; no tokens where a time budget was given.
        resume: Go on with an unfinished run.

    Raises:
        UsageError: A run or a model is there and ``resume`` is not asked for, or none is there and it is, or it was
            started with other settings.
    """
    work = RunFolder(output / "work", "plan.json")
    others = output.is_dir() and any(path != work.folder for path in output.iterdir())
    if not work.begun and not resume and (others or (output.exists() and not output.is_dir())):
        raise UsageError(f"{output} is not empty; give another --output")
    if work.begun and not resume and (output / _CARD).is_file():
        raise UsageError(f"{output} holds a model whose run is finished; give another --output")
    ignored = () if wanted.tokens else ("tokens",)
    stored = work.open(wanted.to_dict(), resume=resume, name=output, elsewhere="give another --output", ignored=ignored)
    return work, Plan.from_dict(stored)


def finish(
    trainer: Trainer,
    position: Position,
    output: Path,
    files: Sequence[CorpusFile],
    *,
    command: str,
    half: bool,
    held_out: Path | None,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """Write the model, its tokenizer, card and loss plot; return the figures."""
    plan = trainer.plan
    trainer.objective.save_tokenizer(output / "work" / "vocab.txt", output, plan.positions)
    trainer.model.save(output, dropout=plan.dropout, half=half)
    figures: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters.values()),
        "steps": position.step,
        "tokens": position.seen,
        "minutes": round(position.seconds / 60, 1),
        "tokens_per_second": round(position.seen / position.seconds) if position.seconds else None,
    }
    figures |= _speed(trainer, output / "log.jsonl")
    if held_out is not None:
        # by its whole path, since a bare `mini-bert` is the shipped one
        backbone = load_backbone(str(output.resolve()), device=trainer.device, dtype=torch.float32)
        found = asdict(prediction_accuracy(backbone, list(CorpusFile(held_out).lines()), progress=progress))
        rounded = {name: round(found.pop(name), 2) for name in ("accuracy", "perplexity")}
        figures["held_out"] = {"file": held_out.name, **rounded, **found}
    write_text(output / _CARD, card(trainer.objective, plan, figures, files, command.replace(" --resume", "")))
    plot_loss(trainer.objective, output / "log.jsonl", output / "loss.png")
    return figures


def _speed(trainer: Trainer, log: Path) -> dict[str, Any]:
    """Return the speed of the steps' matrix products (median over the log) and of one plain product on this machine."""
    rates = [report.gflops for report in read_log(log, Report)]
    if not rates:
        return {}
    plan = trainer.plan
    rate = matrix_rate(trainer.device, trainer.dtype, (plan.batch_tokens, plan.width, 4 * plan.width))
    median = statistics.median(rates)
    return {"gflops": round(median), "matrix_gflops": round(rate), "share_of_matrix_rate": round(median / rate, 2)}
