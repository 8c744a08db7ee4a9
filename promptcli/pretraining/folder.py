"""The folder of a pre-training run: ``work`` while it runs, then a backbone with its card and a plot of the loss."""

import json
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from promptcli import __version__
from promptcli.backbones.devices import matrix_rate
from promptcli.backbones.loading import load_backbone
from promptcli.errors import UsageError
from promptcli.evaluation.perplexity import prediction_accuracy
from promptcli.pretraining.corpus import CorpusFile
from promptcli.pretraining.loop import Objective, Report, Trainer
from promptcli.pretraining.plan import Plan
from promptcli.storage.files import atomic_path, write_text
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
        raise UsageError(f"{output} is not empty; give another `output`")
    if work.begun and not resume and (output / _CARD).is_file():
        raise UsageError(f"{output} holds a model whose run is finished; give another `output`")
    ignored = () if wanted.tokens else ("tokens",)
    stored = work.open(wanted.to_dict(), resume=resume, name=output, elsewhere="give another `output`", ignored=ignored)
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
        found = asdict(prediction_accuracy(backbone, list(CorpusFile(held_out).lines())))
        rounded = {name: round(found.pop(name), 2) for name in ("accuracy", "perplexity")}
        figures["held_out"] = {"file": held_out.name, **rounded, **found}
    write_text(output / _CARD, card(trainer.objective, plan, figures, files, command))
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


def card(objective: Objective, plan: Plan, figures: dict[str, Any], files: Sequence[CorpusFile], command: str) -> str:
    """Return the model's card: shape, command, tokens, held-out figures, corpus, settings."""
    held_out, begun = figures.get("held_out"), plan.begun_from.split()
    mean = "the mean of " if len(begun) > 1 else ""
    embeddings = "tied" if plan.tied else "untied, started as equals"
    lines = [
        f"# A {objective.kind} backbone made by promptcli",
        "",
        f"{objective.architecture}: {plan.layers} layers, {plan.width} wide, {plan.heads} heads, {plan.positions}"
        f" positions, lower-casing WordPiece of {plan.vocab_size:,}; {figures['parameters']:,} parameters; output"
        f" embeddings {embeddings}.",
        "",
        f"- Command: `{command}`",
        f"- Tokens seen: {figures['tokens']:,} in {figures['steps']:,} steps and {figures['minutes']} minutes"
        f" ({figures['tokens_per_second']:,} tokens/s); seed {plan.seed}",
        f"- Optimiser {plan.optimizer}; dropout {plan.dropout} from {plan.dropout_from:.0%} of the tokens on, chunks of"
        f" up to {plan.positions} tokens from {plan.long_from:.0%} on; {objective.places.format(plan=plan)}",
        *([f"- Went on from {mean}the weights {' and '.join(begun)}"] if begun else []),
        f"- Made with promptcli {__version__}, torch {torch.__version__}, numpy {np.__version__},"
        f" Python {platform.python_version()}",
    ]
    if "gflops" in figures:
        lines.append(
            f"- Matrix products of the steps: {figures['gflops']} GFLOP/s (median),"
            f" {figures['share_of_matrix_rate']:.0%} of one plain product's rate on the same machine"
            f" ({figures['matrix_gflops']})"
        )
    if held_out:
        lines.append(
            f"- Held-out {held_out['file']} ({objective.predicted}; {held_out['predicted']:,} tokens):"
            f" top-1 {held_out['accuracy']}%, perplexity {held_out['perplexity']}"
        )
    lines += ["", "| corpus file | SHA-256 | lines |", "|---|---|---|"]
    for file, identity in zip(files, plan.files, strict=True):
        order = "unrelated" if file.unrelated else "in order"
        lines.append(f"| {file.path.name} | {identity.split()[0]} | {order} |")
    return "\n".join([*lines, "", "Settings:", "", "```json", json.dumps(plan.to_dict(), indent=1), "```", ""])


def plot_loss(objective: Objective, log: Path, picture: Path) -> None:
    """Draw loss and accuracy against the tokens seen; nothing where matplotlib (extra ``plot``) is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    reports = read_log(log, Report)
    if not reports:
        return
    seen = [report.seen / 1e6 for report in reports]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    left = figure.subplots()
    right = left.twinx()
    (loss,) = left.plot(seen, [report.loss for report in reports], color="#0072B2", linewidth=0.8)
    (accuracy,) = right.plot(
        seen, [100 * report.accuracy for report in reports], color="#D55E00", linewidth=0.8, linestyle="--"
    )
    left.set(xlabel="tokens seen (millions)", ylabel=f"{objective.kind} loss (nats)")
    right.set(ylabel="tokens guessed right (%)", ylim=(0, None))
    left.legend([loss, accuracy], ["loss", "accuracy"], loc="center")
    with atomic_path(picture) as temporary:
        figure.savefig(temporary, format="png", dpi=120)
