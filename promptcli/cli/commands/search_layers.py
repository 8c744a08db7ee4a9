"""``promptcli search-layers``: which layer and states a recipe reads best, into a registry entry."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli import options
from promptcli.cli.console import half_interval, note, progress, result, result_json, result_table
from promptcli.cli.opening import open_development_set, open_encoder, open_registry
from promptcli.cli.options import ModelChoice, Runtime

if TYPE_CHECKING:
    from promptcli.searching.layers import LayerSearch


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
        about = {"task": task.label, "text": task.text, "pairs": len(task.pairs()), "data_sha256": task.sha256()}
        saved = {"model": name, "recipe": found.encoder.recipe.to_dict()}
        result_json({**found.to_dict(), "seconds": round(seconds, 3), **about, **saved})
        return
    _print_search(found)


def _print_search(found: "LayerSearch") -> None:
    """Print the states, best first, and what the choice is worth."""
    task, recipe = found.task, found.encoder.recipe
    result(f"{task.label}, {len(task.pairs())} pairs, {task.text}; Spearman x 100, ± half of the 95% interval")
    result(f"{recipe.backbone}, {recipe.prompt}; gain over {found.own.pooling}, the recipe's own")
    rows = [[row.pooling, f"{row.value:.2f}", half_interval(row.ci95), f"{row.gain:+.2f}"] for row in found.states]
    result_table(["pooling", "value", "", "gain"], rows)
    luck = found.cross_validation
    result(
        f"\nluck: chosen on one half of the pairs, scored on the other, {luck.choices} times:"
        f" {luck.chosen:.2f} there, {luck.held_out:.2f} here\n"
        f"({luck.gap:+.2f}); {luck.gain:+.2f} over the recipe's own here;"
        f" the states on top were chosen {luck.agreement:.0%} of the times"
    )
