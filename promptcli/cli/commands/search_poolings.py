"""``promptcli ditto-search`` and ``search-layers``: the best attention head, the best layer, into a registry entry."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli import options
from promptcli.cli.console import half_interval, note, out, progress, result, result_json, result_table
from promptcli.cli.opening import (
    configure_libraries,
    default_backbone,
    open_backbone,
    open_development_set,
    open_encoder,
    open_registry,
    sentences_of,
)
from promptcli.cli.options import ModelChoice, Runtime
from promptcli.cli.pictures.maps import head_map
from promptcli.cli.pictures.plots import PictureOptions, draw_head_maps

if TYPE_CHECKING:
    from promptcli.data.tasks import STSTask
    from promptcli.searching.head_luck import CrossValidation
    from promptcli.searching.heads import HeadSearch
    from promptcli.searching.layers import LayerSearch


def _task_facts(task: "STSTask") -> dict[str, Any]:
    """Return which pairs chose, for JSON."""
    return {"task": task.label, "text": task.text, "pairs": len(task.pairs()), "data_sha256": task.sha256()}


def print_task(task: "STSTask") -> None:
    """Print which pairs chose, and what the figures below are."""
    result(f"{task.label}, {len(task.pairs()):,} pairs, {task.text}; Spearman x 100, ± half of the 95% interval")


def _print_luck(luck: "CrossValidation", over: str, top: str) -> None:
    """Print what the choice is worth.

    Args:
        luck: Measured by cross-validation.
        over: What the gain is over.
        top: What was chosen, with its verb.
    """
    result(
        f"\nluck: chosen on one half of the pairs, scored on the other, {luck.choices} times:"
        f" {luck.chosen:.2f} there, {luck.held_out:.2f} here\n"
        f"({luck.gap:+.2f}); {luck.gain:+.2f} over {over} here; {top} chosen {luck.agreement:.0%} of the times"
    )


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
        idf = {"source": corpus, "sentences": len(sentences)}
        saved = {"model": name, "recipe": found.recipe.to_dict()}
        result_json({**found.to_dict(), "seconds": round(seconds, 3), **_task_facts(task), "idf": idf, **saved})
        return
    _print_heads(found, f"{len(sentences):,} sentences of {corpus}")


def _print_heads(found: "HeadSearch", idf: str) -> None:
    """Print the ranked heads, the plain averages, one heat map and what the choice is worth."""
    count = sum(rows.size for rows in found.values.values())
    print_task(found.task)
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
    _print_luck(found.cross_validation, "the plain average of its states", "the head on top was")


def search_layers(
    on: options.DevelopmentPairs = None,
    data_dir: options.DataDir = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(help="Weights to try on every layer, e.g. avg, last-token; repeatable. Default: the recipe's."),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the registry entry to make of the best.")] = "layers",
    force: options.Force = False,
    json: options.Json = False,
    *,
    choice: ModelChoice,
    runtime: Runtime,
) -> None:
    """Rank the layers of a backbone as a recipe reads them, in one pass, and save the best as a model.

    Every layer (0: the embeddings), the last, and the means of first and last. The figures are those of
    `promptcli eval --pooling STATES/WEIGHTS` on the development set.
    """
    registry = open_registry()
    registry.check_free(name, force=force)
    encoder = open_encoder(choice, runtime)
    from promptcli.evaluation.evaluator import distinct_sentences
    from promptcli.searching.layers import search_layers as search

    task = open_development_set(on, data_dir, runtime)
    start = time.perf_counter()
    with progress("search-layers", len(distinct_sentences([task]))) as advance:
        found = search(encoder, task, weights=weights or (), progress=advance)
    seconds = time.perf_counter() - start
    registry.save(found.entry(name), force=force)
    note(f"{found.states[0].pooling} saved as model {name!r}")
    if json:
        saved = {"model": name, "recipe": found.recipe.to_dict()}
        result_json({**found.to_dict(), "seconds": round(seconds, 3), **_task_facts(task), **saved})
        return
    _print_layers(found)


def _print_layers(found: "LayerSearch") -> None:
    """Print the states, best first, and what the choice is worth."""
    recipe = found.recipe
    print_task(found.task)
    result(f"{recipe.backbone}, {recipe.prompt}; gain over {found.own.pooling}, the recipe's own")
    rows = [[row.pooling, f"{row.value:.2f}", half_interval(row.ci95), f"{row.gain:+.2f}"] for row in found.states]
    result_table(["pooling", "value", "", "gain"], rows)
    _print_luck(found.cross_validation, "the recipe's own", "the states on top were")
