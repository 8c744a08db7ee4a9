"""Tables of searches of heads, layers and templates."""

from collections.abc import Sequence
from typing import Any

from promptcli.cli.console import half_interval, terminal_width
from promptcli.cli.grids import Grid, best_cells
from promptcli.cli.pictures import head_map
from promptcli.cli.result_files import Part
from promptcli.grammar import parse_pooling
from promptcli.searching.head_pass import HEAD_WEIGHTS
from promptcli.searching.search import Ranked, Search
from promptcli.searching.template_search import published_scores


def heads_parts(search: Search, corpus: str, *, intervals: bool) -> list[Part]:
    """Return the best heads, the map of all, which the terminal shows, and the selection bias."""
    parts = _caption(search, intervals=intervals)
    part = HEAD_WEIGHTS[search.about["weights"]].part
    parts.append(
        f"best {len(search.ranked)} of {search.about['compared']}; gain over the plain average of"
        " the same states;"
    )
    parts.append(
        f"correlation of the head's {part} with TF-IDF over tokens (idf counted on {corpus})"
    )
    rows = []
    for rank, head in enumerate(search.ranked, 1):
        pooling = parse_pooling(head.choice)
        row = [
            str(rank),
            pooling.weights[0].argument or "",
            str(pooling.states),
            *_score(head),
            f"{head.gain:+.2f}",
        ]
        if head.tfidf is not None:
            row += [f"{head.tfidf.pearson:.2f}", f"{head.tfidf.spearman:.2f}"]
        rows.append(row)
    for states, plain in search.baseline.items():
        rows.append(["", "plain", states, *_score(plain), "", "", ""])
    names = ["", "head", "states", "value", "", "gain", "Pearson", "Spearman"]
    parts.append(_ranking(names, rows, value=3, intervals=intervals))
    states = str(parse_pooling(search.best.choice).states)
    kind = {"ditto": "Ditto"}.get(search.about["weights"], search.about["weights"])
    parts += ["", f"{states} {kind}, every head"]
    parts.append(head_map(search.maps[states].tolist(), terminal_width()))
    parts.append(f"the plain average: {search.baseline[states].value:.2f}")
    parts += _selection_bias(search, "head", "the plain average of its states")
    return parts + _verdict(search)


def layers_parts(search: Search, *, intervals: bool) -> list[Part]:
    """Return the layers, best first, and the selection bias."""
    recipe = search.recipe
    parts = _caption(search, intervals=intervals)
    parts.append(
        f"{recipe.backbone}, {recipe.prompt}; gain over {search.baseline['own'].choice}, the"
        " recipe's own"
    )
    rows = [[row.choice, *_score(row), f"{row.gain:+.2f}"] for row in search.ranked]
    parts.append(_ranking(["pooling", "value", "", "gain"], rows, value=1, intervals=intervals))
    parts += _selection_bias(search, "layer", "the recipe's own layer")
    return parts + _verdict(search)


def templates_parts(search: Search, *, intervals: bool) -> list[Part]:
    """Return the templates as PromptBERT's table 4, with the published scores, if any.

    A search of a single stage is cut to its ``top``.
    """
    backbone = search.recipe.backbone
    task = search.task
    published = published_scores(backbone, task.label)
    listed = {id(item) for item in search.ranked}
    rows: list[list[str]] = []
    for heading, templates in search.stages.items():
        rows.append([heading, "", "", "", ""])
        for item in templates:
            if id(item) not in listed:
                continue
            printed = "-"
            if item.choice in published:
                printed = f"{published[item.choice]:.2f}"
            star = "*" if item is search.best else ""
            rows.append([item.choice, star, *_score(item), printed])
    rows.append(["Without a template", "", "", "", ""])
    for item in search.baseline.values():
        rows.append([item.choice, "", *_score(item), "-"])
    heads = ["template", "", task.label, "", "published"]
    if not published:
        heads.pop()
    scores = "Spearman x 100"
    if intervals:
        scores += " ± half of the 95% bootstrap interval"
    return [
        f"{backbone} on {task.label} ({len(task.pairs()):,} pairs, {task.text})",
        f"{scores}; {search.recipe.pooling}, period rule; * the best",
        search.about["compared"],
        _ranking(heads, [row[: len(heads)] for row in rows], value=2, intervals=intervals),
        *_verdict(search),
    ]


def search_records(search: Search) -> list[dict[str, Any]]:
    """Return a row for each choice, best first, and one for each that they compete with."""
    records = []
    for item in search.ranked:
        records.append(_record(search, item, "choice"))
    for item in search.baseline.values():
        records.append(_record(search, item, "baseline"))
    return records


def _record(search: Search, item: Ranked, kind: str) -> dict[str, Any]:
    row = item.to_dict()
    low, high = row["ci95"]
    correlation = row.get("tfidf", {})
    return {
        "backbone": search.recipe.backbone,
        "task": search.task.label,
        "kind": kind,
        "stage": item.stage,
        "choice": item.choice,
        "value": row["value"],
        "ci95_low": low,
        "ci95_high": high,
        "gain": row.get("gain", ""),
        "pearson": correlation.get("pearson", ""),
        "spearman": correlation.get("spearman", ""),
    }


def _caption(search: Search, *, intervals: bool) -> list[Part]:
    task = search.task
    scores = "Spearman x 100"
    if intervals:
        scores += ", ± half of the 95% interval"
    return [f"{task.label}, {len(task.pairs()):,} pairs, {task.text}", scores]


def _score(item: Ranked) -> list[str]:
    """Return a score and half of its 95% interval."""
    return [f"{item.value:.2f}", half_interval(item.ci95)]


def _ranking(
    heads: Sequence[str], rows: Sequence[Sequence[str]], *, value: int, intervals: bool
) -> Grid:
    """Lay out choices; ``value`` is the column of their scores, and the intervals follow it."""
    best = best_cells(rows, [value], range(len(rows)))
    if intervals:
        return Grid(heads, rows, best)
    half = value + 1
    kept = [[*row[:half], *row[half + 1 :]] for row in rows]
    return Grid([*heads[:half], *heads[half + 1 :]], kept, best)


def _selection_bias(search: Search, chosen: str, baseline: str) -> list[Part]:
    halves = search.cross_validation
    assert halves is not None
    return [
        "",
        f"selection bias ({halves.choices} random splits): {halves.chosen:.2f} on the half that"
        f" chose the {chosen}, {halves.held_out:.2f} on the held-out half ({halves.gap:+.2f})",
        f"gain over {baseline} on the held-out half: {halves.gain:+.2f}",
        f"the best {chosen} above was chosen in {halves.agreement:.0%} of the splits",
    ]


def _verdict(search: Search) -> list[Part]:
    """Return that a plain average is better than the best choice, if so."""
    plain = search.better_baseline
    if plain is None:
        return []
    ahead = plain.value - search.best.value
    return [
        "",
        f"the plain average {plain.choice} is better: {plain.value:.2f}, {ahead:.2f} above"
        " the best choice",
    ]
