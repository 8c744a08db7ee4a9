"""``promptcli ditto-search`` and ``search-layers``: the best attention head, the best layer."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli import options
from promptcli.cli.console import half_interval, note, out, result, result_json, result_table
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
    from promptcli.searching.search import Search


def print_task(task: "STSTask") -> None:
    """Print which pairs chose, and what the figures below are."""
    result(f"{task.label}, {len(task.pairs()):,} pairs, {task.text}; Spearman x 100, ± half of the 95% interval")


def check_name(name: str | None, *, force: bool) -> None:
    """Refuse a name that is taken, before the work."""
    if name is not None:
        open_registry().check_free(name, force=force)


def say_kept(found: "Search", name: str | None) -> None:
    """Say what was saved, or how it would be."""
    kept = "is not saved; to keep it: --name NAME" if name is None else f"saved as model {name!r}"
    note(f"{found.best.choice} {kept}")


def _print_luck(found: "Search", over: str, top: str) -> None:
    """Print what the choice is worth.

    Args:
        found: With a cross-validation.
        over: What the gain is over.
        top: What was chosen, with its verb.
    """
    luck = found.cross_validation
    assert luck is not None
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
    name: Annotated[str | None, typer.Option(help="Save the best in the registry under this name.")] = None,
    json: options.Json = False,
    *,
    picture: PictureOptions,
    runtime: Runtime,
) -> None:
    """Rank all attention heads of a backbone by Ditto pooling, in one pass.

    Every layer-head (both from 1) is tried on static, last and first-last states. The figures are those of
    `promptcli eval --pooling STATES/ditto:LAYER-HEAD` on the development set.
    """
    configure_libraries(runtime)
    from promptcli.api.searching import search_heads
    from promptcli.encoder.encoder import Encoder
    from promptcli.recipe import Recipe
    from promptcli.searching.heads import SEARCHED

    check_name(name, force=picture.force)
    picture.check()
    task = open_development_set(on, data_dir, runtime)
    sentences = sentences_of(corpus, data_dir, runtime)
    loaded = open_backbone(backbone or default_backbone(paper=False), runtime)
    encoder = Encoder(Recipe(backbone=loaded.name), loaded, {})
    start = time.perf_counter()
    found = search_heads(encoder, task, sentences, states=states or SEARCHED, top=top, name=name, force=picture.force)
    seconds = time.perf_counter() - start
    picture.draw(draw_head_maps, found.maps, f"{loaded.name} on {task.label}: Spearman x 100 of every head")
    say_kept(found, name)
    if json:
        idf = {"source": corpus, "sentences": len(sentences)}
        result_json({**found.to_dict(), "seconds": round(seconds, 3), "idf": idf, "model": name})
        return
    _print_heads(found, f"{len(sentences):,} sentences of {corpus}")


def _print_heads(found: "Search", idf: str) -> None:
    """Print the ranked heads, the plain averages, one heat map and what the choice is worth."""
    print_task(found.task)
    result(f"best {len(found.ranked)} of {found.about['compared']}; gain over the plain average of the same states;")
    result(f"correlation of the head's diagonal with TF-IDF over tokens (idf: {idf})")
    rows = []
    for rank, head in enumerate(found.ranked, 1):
        states, _, name = head.choice.partition("/ditto:")
        figures = [f"{head.value:.2f}", half_interval(head.ci95), f"{head.gain:+.2f}"]
        alike = [] if head.tfidf is None else [f"{head.tfidf.pearson:.2f}", f"{head.tfidf.spearman:.2f}"]
        rows.append([str(rank), name, states, *figures, *alike])
    for states, plain in found.baseline.items():
        rows.append(["", "plain", states, f"{plain.value:.2f}", half_interval(plain.ci95), "", "", ""])
    result_table(["", "head", "states", "value", "", "gain", "Pearson", "Spearman"], rows)
    states = found.best.choice.partition("/")[0]
    result(f"\n{states} Ditto, every head")
    for line in head_map(found.maps[states].tolist()):
        out.print(line)
    _print_luck(found, "the plain average of its states", "the head on top was")


def search_layers(
    on: options.DevelopmentPairs = None,
    data_dir: options.DataDir = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(help="Weights to try on every layer, e.g. avg, last-token; repeatable. Default: the recipe's."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Save the best in the registry under this name.")] = None,
    force: options.Force = False,
    json: options.Json = False,
    *,
    choice: ModelChoice,
    runtime: Runtime,
) -> None:
    """Rank the layers of a backbone as a recipe reads them, in one pass.

    Every layer (0: the embeddings), the last, and the means of first and last. The figures are those of
    `promptcli eval --pooling STATES/WEIGHTS` on the development set.
    """
    check_name(name, force=force)
    encoder = open_encoder(choice, runtime)
    from promptcli.api.searching import search_layers as search

    task = open_development_set(on, data_dir, runtime)
    start = time.perf_counter()
    found = search(encoder, task, weights=weights or (), name=name, force=force)
    seconds = time.perf_counter() - start
    say_kept(found, name)
    if json:
        result_json({**found.to_dict(), "seconds": round(seconds, 3), "model": name})
        return
    print_task(found.task)
    recipe = found.recipe
    result(f"{recipe.backbone}, {recipe.prompt}; gain over {found.baseline['own'].choice}, the recipe's own")
    rows = [[row.choice, f"{row.value:.2f}", half_interval(row.ci95), f"{row.gain:+.2f}"] for row in found.ranked]
    result_table(["pooling", "value", "", "gain"], rows)
    _print_luck(found, "the recipe's own", "the states on top were")
