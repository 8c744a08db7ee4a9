"""Tables of `promptcli search-templates` as lines of text, laid out as PromptBERT's table 4. Part of the entrance."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from promptcli.searching.template_scorer import ScoredTemplate, TemplateScorer


def search_table(
    scorer: "TemplateScorer", groups: "Sequence[tuple[str, Sequence[ScoredTemplate]]]", about: str, *, top: int
) -> list[str]:
    """Lay out one backbone's templates, the published figures beside them where there are any.

    Args:
        scorer: Backbone, task and protocol.
        groups: Heading and templates of each part; a single part is cut to ``top``.
        about: What was compared.
        top: How many of a single part.
    """
    from promptcli.searching.template_space import published_scores

    recipe, task = scorer.recipe, scorer.task
    comparable = recipe.period and recipe.denoise == "none"
    published = published_scores(scorer.backbone.name, task.label) if comparable else {}
    shown = [(heading, rows if len(groups) > 1 else rows[:top]) for heading, rows in groups]
    width = max(len(row.template) for _, rows in shown for row in rows)
    best = max((row for _, rows in shown for row in rows), key=lambda row: row.value)
    lines = [
        f"{scorer.backbone.name} on {task.label} ({scorer.size:,} pairs, {task.text})",
        f"Spearman x 100 ± half of the 95% bootstrap interval; last/mask, period rule"
        f" {'on' if recipe.period else 'off'}, denoise {recipe.denoise}; * the best",
        about,
        f"{'template':<{width}}   {task.label:>13}" + ("   published" if published else ""),
    ]
    for heading, rows in shown:
        lines.append(heading)
        for row in rows:
            mark = "*" if row is best else " "
            line = f"{row.template:<{width}} {mark} {_figure(row)}"
            if published:
                line += f"   {published[row.template]:9.2f}" if row.template in published else f"   {'-':>9}"
            lines.append(line)
    return lines


def summary_table(searches: "Sequence[tuple[TemplateScorer, ScoredTemplate, str]]") -> list[str]:
    """Lay out each backbone's best template and the registry entry that holds it."""
    names = [scorer.backbone.name for scorer, _, _ in searches]
    width = max(len("backbone"), *map(len, names))
    saved = max(len("model"), *(len(entry) for _, _, entry in searches))
    lines = ["", f"{'backbone':<{width}}   {searches[0][0].task.label:>13}   {'model':<{saved}}   best template"]
    for name, (_, best, entry) in zip(names, searches, strict=True):
        lines.append(f"{name:<{width}}   {_figure(best)}   {entry:<{saved}}   {best.template}")
    return lines


def _figure(row: "ScoredTemplate") -> str:
    low, high = row.ci95
    return f"{row.value:6.2f} ±{(high - low) / 2:5.2f}"
