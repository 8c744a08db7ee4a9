"""``promptcli ditto-search``: the attention head whose diagonal weighs tokens best, into a registry entry."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from promptcli.cli.console import note, out, progress, result_json
from promptcli.cli.opening import (
    announcer,
    configure_libraries,
    data_folder,
    default_backbone,
    open_development_set,
    open_entries,
    open_registry,
)
from promptcli.cli.options import Runtime
from promptcli.cli.pictures.heat_map import check_picture, heat_map, save_picture
from promptcli.encoder.recipe import Recipe

if TYPE_CHECKING:
    from promptcli.data.tasks import STSTask
    from promptcli.encoder.encoder import Encoder
    from promptcli.registry.registry import Registry
    from promptcli.searching.heads import HeadSearch


def ditto_search(
    backbone: Annotated[
        str | None,
        typer.Option(
            "--backbone", help="Whose heads: a local folder or a hub id. Default: mini (shipped).", show_default=False
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="TASK",
            help="Development set. Default: STS-B:dev with --data-dir, else demo:dev (our own pairs, no benchmark).",
            show_default=False,
        ),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", help="SentEval folder of the task.")] = None,
    states: Annotated[
        list[str] | None,
        typer.Option("--states", help="static, last, first-last; repeatable. Default: all three.", show_default=False),
    ] = None,
    corpus: Annotated[
        str,
        typer.Option("--corpus", help="Sentences to count idf on, for the TF-IDF correlation: file, task, `demo`."),
    ] = "demo",
    top: Annotated[int, typer.Option("--top", min=1, help="How many heads to list.")] = 10,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the heat maps into a .png or .svg file (needs matplotlib).")
    ] = None,
    name: Annotated[str, typer.Option("--name", help="Name of the registry entry to make of the best.")] = "ditto",
    force: Annotated[bool, typer.Option("--force", help="Replace an entry or a picture of that name.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    *,
    runtime: Runtime,
) -> None:
    """Rank all attention heads of a backbone by Ditto pooling, in one pass, and save the best as a model.

    Every layer-head (both from 1) is tried on static, last and first-last states. The figures are those of
    `promptcli eval --pooling STATES/ditto:LAYER-HEAD` on the development set.
    """
    configure_libraries(runtime)
    from promptcli.data.sources import fitting_sentences
    from promptcli.evaluation.evaluator import distinct_sentences
    from promptcli.registry.registry import Entry
    from promptcli.searching.heads import SEARCHED, search_heads

    registry = open_registry()
    registry.check_free(name, force=force)
    if plot is not None:
        check_picture(plot, force=force)
    task = open_development_set(on, data_dir, runtime)
    sentences = fitting_sentences(corpus, data_folder(data_dir), offline=runtime.offline, announce=announcer(runtime))
    backbone = backbone or default_backbone(paper=False)
    encoder = open_entries([Entry(name, Recipe(backbone=backbone))], runtime)[0]
    start = time.perf_counter()
    with progress("ditto-search", len(distinct_sentences([task])), quiet=runtime.quiet) as advance:
        found = search_heads(encoder.backbone, task, sentences, states=states or SEARCHED, top=top, progress=advance)
    seconds = time.perf_counter() - start
    best = _save(registry, name, encoder, task, found, force=force)
    maps = {states: values.tolist() for states, values in found.values.items()}
    if plot is not None:
        save_picture(plot, maps, f"{backbone} on {task.label}: Spearman x 100 of every head")
        note(f"heat maps drawn to {plot}", quiet=runtime.quiet)
    note(f"{found.heads[0].pooling} saved as model {name!r}", quiet=runtime.quiet)
    if json:
        about = {"task": task.label, "text": task.text, "pairs": len(task.pairs()), "data_sha256": task.sha256()}
        idf = {"source": corpus, "sentences": len(sentences)}
        result_json({**_figures(found, maps), "seconds": round(seconds, 3), **about, "idf": idf, **best})
        return
    _print_search(found, task, maps, f"{len(sentences):,} sentences of {corpus}")


def _save(
    registry: "Registry", name: str, encoder: "Encoder", task: "STSTask", found: "HeadSearch", *, force: bool
) -> dict[str, Any]:
    """Save the best head's recipe as an entry; return what it is called and made of."""
    from promptcli.encoder.encoder import Encoder
    from promptcli.registry.registry import Entry

    best = found.heads[0]
    winner = Encoder(encoder.recipe.replace(pooling=best.pooling), encoder.backbone, {})
    searched = {
        "task": task.label,
        "data_sha256": task.sha256(),
        "pairs": len(task.pairs()),
        "states": list(found.values),
        "value": round(best.value, 4),
        "held_out": round(found.cross_validation.held_out, 4),
    }
    provenance = {**winner.provenance, "width": winner.width, "searched_on": searched}
    registry.save(Entry(name, winner.recipe, {}, provenance), force=force)
    return {"model": name, "recipe": winner.recipe.to_dict()}


def _figures(found: "HeadSearch", maps: dict[str, list[list[float]]]) -> dict[str, Any]:
    from promptcli.searching.heads import rounded

    return {
        "heads": [head.to_dict() for head in found.heads],
        "baseline": {
            states: {"value": round(value, 4), "ci95": rounded(interval)}
            for states, (value, interval) in found.baseline.items()
        },
        "maps": {states: [[round(value, 4) for value in row] for row in rows] for states, rows in maps.items()},
        "cross_validation": found.cross_validation.to_dict(),
    }


def _print_search(found: "HeadSearch", task: "STSTask", maps: dict[str, list[list[float]]], idf: str) -> None:
    """Print the ranked heads, the plain averages, one heat map and what the choice is worth."""
    count = sum(len(rows) * len(rows[0]) for rows in maps.values())
    out.print(Text(f"{task.label}, {len(task.pairs())} pairs, {task.text}; Spearman x 100, ± half of the 95% interval"))
    out.print(Text(f"best {len(found.heads)} of {count}; gain over the plain average of the same states;"))
    out.print(Text(f"correlation of the head's diagonal with TF-IDF over tokens (idf: {idf})"))
    rows = [["", "head", "states", "value", "", "gain", "Pearson", "Spearman"]]
    for rank, head in enumerate(found.heads, 1):
        figures = [f"{head.value:.2f}", _half(head.ci95), f"{head.gain:+.2f}"]
        alike = [f"{head.tfidf.pearson:.2f}", f"{head.tfidf.spearman:.2f}"]
        rows.append([str(rank), head.head, head.states, *figures, *alike])
    for states, (value, interval) in found.baseline.items():
        rows.append(["", "plain", states, f"{value:.2f}", _half(interval), "", "", ""])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.ljust(width) if place in (1, 2) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        out.print(Text("  ".join(cells).rstrip()))
    states = found.heads[0].states
    out.print(Text(f"\n{states} Ditto, every head"))
    for line in heat_map(maps[states]):
        out.print(line)
    luck = found.cross_validation
    out.print(
        Text(
            f"\nluck: chosen on one half of the pairs, scored on the other, {luck.choices} times:"
            f" {luck.chosen:.2f} there, {luck.held_out:.2f} here\n"
            f"({luck.gap:+.2f}); {luck.gain:+.2f} over the plain average of its states here;"
            f" the head on top was chosen {luck.agreement:.0%} of the times"
        )
    )


def _half(interval: tuple[float, float]) -> str:
    return f"±{(interval[1] - interval[0]) / 2:.2f}"
