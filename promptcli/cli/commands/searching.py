"""``promptcli ditto-search``, ``search-layers`` and ``search-templates``."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli import searching as library
from promptcli.cli.console import (
    half_interval,
    note,
    out,
    result_json,
    result_table,
    show,
    terminal_width,
)
from promptcli.cli.options import Json, choice_of, default_backbone
from promptcli.cli.pictures import PictureOptions, draw_head_maps, head_map
from promptcli.cli.signatures import Flag, command_of
from promptcli.settings import PAPER

if TYPE_CHECKING:
    from promptcli.searching.search import Ranked, Search

#: A model of which only the backbone counts.
BACKBONE = Flag("--model -m --backbone", read=lambda name: choice_of(name or default_backbone()))
_ON = Flag(metavar="TASK")


@command_of(library.search_heads, flags={"model": BACKBONE, "on": _ON, "top": Flag(min=1)})
def ditto_search(search: "partial[Search]", picture: PictureOptions, json: Json = False) -> None:
    picture.check()
    heads = search()
    picture.draw(draw_head_maps, heads)
    _show(heads, lambda heads: _print_heads(heads, search.keywords["corpus"]), as_json=json)


@command_of(library.search_layers, flags={"on": _ON})
def search_layers(search: "partial[Search]", json: Json = False) -> None:
    _show(search(), _print_layers, as_json=json)


@command_of(
    library.search_templates,
    flags={
        "model": Flag("--model -m --backbone", read=lambda name: name),
        "on": _ON,
        "changes": None,
    },
)
def search_templates(
    search: "partial[Search]",
    paper: Annotated[
        bool,
        typer.Option(
            "--paper", help="Default to the papers' settings: bert-base-uncased, STS-B:dev."
        ),
    ] = False,
    json: Json = False,
) -> None:
    model = search.keywords["model"] or default_backbone(paper=paper)
    task = search.keywords["on"]
    if not task and paper:
        task = PAPER.development
    found = search(model=choice_of(model), on=task or None)
    _note_saved(found)
    if json:
        result_json(found.to_dict())
    else:
        print_search(found)
    note(
        "the score on the pairs that chose a template is too high; score it on other pairs with"
        " `promptcli eval`"
    )


def _show(search: "Search", print_ranking: Callable[["Search"], None], *, as_json: bool) -> None:
    _note_saved(search)
    if as_json:
        result_json(search.to_dict())
        return
    task = search.task
    show(f"{task.label}, {len(task.pairs()):,} pairs, {task.text}")
    show("Spearman x 100, ± half of the 95% interval")
    print_ranking(search)
    _print_verdict(search)


def _note_saved(search: "Search") -> None:
    if search.saved_as:
        note(f"{search.best.choice} saved as model {search.saved_as!r}")
    else:
        note(f"{search.best.choice} is not saved; keep it with --name NAME")


def _print_verdict(search: "Search") -> None:
    plain = search.better_baseline
    if plain is not None:
        ahead = plain.value - search.best.value
        show(
            f"\nthe plain average {plain.choice} is better: {plain.value:.2f}, {ahead:.2f} above"
            " the best choice"
        )


def _print_selection_bias(search: "Search", chosen: str, baseline: str) -> None:
    halves = search.cross_validation
    assert halves is not None
    show(
        f"\nselection bias ({halves.choices} random splits): {halves.chosen:.2f} on the half that"
        f" chose the {chosen}, {halves.held_out:.2f} on the held-out half ({halves.gap:+.2f})\ngain"
        f" over {baseline} on the held-out half: {halves.gain:+.2f}\nthe best {chosen} above was"
        f" chosen in {halves.agreement:.0%} of the splits"
    )


def _print_heads(search: "Search", corpus: str) -> None:
    show(
        f"best {len(search.ranked)} of {search.about['compared']}; gain over the plain average of"
        " the same states;"
    )
    show(f"correlation of the head's diagonal with TF-IDF over tokens (idf counted on {corpus})")
    rows = []
    for rank, head in enumerate(search.ranked, 1):
        states, _, name = head.choice.partition("/ditto:")
        row = [str(rank), name, states, *_score(head), f"{head.gain:+.2f}"]
        if head.tfidf is not None:
            row += [f"{head.tfidf.pearson:.2f}", f"{head.tfidf.spearman:.2f}"]
        rows.append(row)
    for states, plain in search.baseline.items():
        rows.append(["", "plain", states, *_score(plain), "", "", ""])
    result_table(["", "head", "states", "value", "", "gain", "Pearson", "Spearman"], rows)
    states = search.best.choice.partition("/")[0]
    show(f"\n{states} Ditto, every head")
    for line in head_map(search.maps[states].tolist(), terminal_width()):
        out.print(line)
    show(f"the plain average: {search.baseline[states].value:.2f}")
    _print_selection_bias(search, "head", "the plain average of its states")


def _print_layers(search: "Search") -> None:
    recipe = search.recipe
    show(
        f"{recipe.backbone}, {recipe.prompt}; gain over {search.baseline['own'].choice}, the"
        " recipe's own"
    )
    rows = [[row.choice, *_score(row), f"{row.gain:+.2f}"] for row in search.ranked]
    result_table(["pooling", "value", "", "gain"], rows)
    _print_selection_bias(search, "layer", "the recipe's own layer")


def print_search(search: "Search") -> None:
    """Print the templates as PromptBERT's table 4, with the published scores, if any.

    A search of a single stage is cut to its ``top``.
    """
    from promptcli.searching.template_search import published_scores

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
    show(f"{backbone} on {task.label} ({len(task.pairs()):,} pairs, {task.text})")
    show(
        f"Spearman x 100 ± half of the 95% bootstrap interval; {search.recipe.pooling}, period"
        " rule; * the best"
    )
    show(search.about["compared"])
    heads = ["template", "", task.label, "", "published"]
    if not published:
        heads.pop()
    result_table(heads, [row[: len(heads)] for row in rows])
    _print_verdict(search)


def _score(item: "Ranked") -> list[str]:
    """Return a score and half of its 95% interval."""
    return [f"{item.value:.2f}", half_interval(item.ci95)]
