"""What is published with a pre-trained model's weights: a card in Markdown and a plot of the loss."""

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from promptcli import __version__
from promptcli.pretraining.corpus import CorpusFile
from promptcli.pretraining.loop import Report
from promptcli.pretraining.objectives import Objective
from promptcli.pretraining.plan import Plan
from promptcli.storage.files import atomic_path
from promptcli.storage.runs import read_log


def card(objective: Objective, plan: Plan, figures: dict[str, Any], files: Sequence[CorpusFile], command: str) -> str:
    """Return the model's card: shape, command, tokens, held-out figures, corpus, settings."""
    held_out = figures.get("held_out")
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
        *([f"- Went on from {_begun_from(plan.begun_from.split())}"] if plan.begun_from else []),
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


def _begun_from(digests: Sequence[str]) -> str:
    return ("the mean of the weights " if len(digests) > 1 else "the weights ") + " and ".join(digests)


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
