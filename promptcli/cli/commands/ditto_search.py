"""``promptcli ditto-search``: the attention head whose diagonal weighs tokens best, into a registry entry."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli import options
from promptcli.cli.console import half_interval, note, out, progress, result, result_json, result_table
from promptcli.cli.opening import (
    configure_libraries,
    default_backbone,
    open_backbone,
    open_development_set,
    open_registry,
    sentences_of,
)
from promptcli.cli.options import Runtime
from promptcli.cli.pictures.maps import head_map
from promptcli.cli.pictures.plots import PictureOptions, draw_head_maps

if TYPE_CHECKING:
    from promptcli.searching.heads import HeadSearch


def ditto_search(
    backbone: options.BackboneName = None,
    on: options.DevelopmentPairs = None,
    data_dir: options.DataDir = None,
    states: Annotated[
        list[str] | None, typer.Option(help="static, last, first-last; repeatable. Default: all three.")
    ] = None,
    corpus: options.Corpus = "demo",
    top: Annotated[int, typer.Option(min=1, help="How many heads to list.")] = 10,
    name: Annotated[str, typer.Option(help="Name of the registry entry to make of the best.")] = "ditto",
    json: options.Json = False,
    *,
    picture: PictureOptions,
    runtime: Runtime,
) -> None:
    """Rank all attention heads of a backbone by Ditto pooling, in one pass, and save the best as a model.

    Every layer-head (both from 1) is tried on static, last and first-last states. The figures are those of
    `promptcli eval --pooling STATES/ditto:LAYER-HEAD` on the development set.
    """
    configure_libraries(runtime)
    from promptcli.evaluation.evaluator import distinct_sentences
    from promptcli.searching.heads import SEARCHED, search_heads

    registry = open_registry()
    registry.check_free(name, force=picture.force)
    picture.check()
    task = open_development_set(on, data_dir, runtime)
    sentences = sentences_of(corpus, data_dir, runtime)
    loaded = open_backbone(backbone or default_backbone(paper=False), runtime)
    start = time.perf_counter()
    with progress("ditto-search", len(distinct_sentences([task]))) as advance:
        found = search_heads(loaded, task, sentences, states=states or SEARCHED, top=top, progress=advance)
    seconds = time.perf_counter() - start
    registry.save(found.entry(name), force=picture.force)
    title = f"{loaded.name} on {task.label}: Spearman x 100 of every head"
    picture.draw(draw_head_maps, found.values, title)
    note(f"{found.heads[0].pooling} saved as model {name!r}")
    if json:
        about = {"task": task.label, "text": task.text, "pairs": len(task.pairs()), "data_sha256": task.sha256()}
        idf = {"source": corpus, "sentences": len(sentences)}
        saved = {"model": name, "recipe": found.recipe.to_dict()}
        result_json({**found.to_dict(), "seconds": round(seconds, 3), **about, "idf": idf, **saved})
        return
    _print_search(found, f"{len(sentences):,} sentences of {corpus}")


def _print_search(found: "HeadSearch", idf: str) -> None:
    """Print the ranked heads, the plain averages, one heat map and what the choice is worth."""
    count = sum(rows.size for rows in found.values.values())
    task = found.task
    result(f"{task.label}, {len(task.pairs())} pairs, {task.text}; Spearman x 100, ± half of the 95% interval")
    result(f"best {len(found.heads)} of {count}; gain over the plain average of the same states;")
    result(f"correlation of the head's diagonal with TF-IDF over tokens (idf: {idf})")
    rows = []
    for rank, head in enumerate(found.heads, 1):
        figures = [f"{head.value:.2f}", half_interval(head.ci95), f"{head.gain:+.2f}"]
        alike = [f"{head.tfidf.pearson:.2f}", f"{head.tfidf.spearman:.2f}"]
        rows.append([str(rank), head.head, head.states, *figures, *alike])
    for states, (value, interval) in found.baseline.items():
        rows.append(["", "plain", states, f"{value:.2f}", half_interval(interval), "", "", ""])
    result_table(["", "head", "states", "value", "", "gain", "Pearson", "Spearman"], rows)
    states = found.heads[0].states
    result(f"\n{states} Ditto, every head")
    for line in head_map(found.values[states].tolist()):
        out.print(line)
    luck = found.cross_validation
    result(
        f"\nluck: chosen on one half of the pairs, scored on the other, {luck.choices} times:"
        f" {luck.chosen:.2f} there, {luck.held_out:.2f} here\n"
        f"({luck.gap:+.2f}); {luck.gain:+.2f} over the plain average of its states here;"
        f" the head on top was chosen {luck.agreement:.0%} of the times"
    )
