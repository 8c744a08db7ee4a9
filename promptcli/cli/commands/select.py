"""``promptcli ditto-search``, ``search-layers`` and ``search-templates``."""

from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.console import half_interval, note, result_json, result_table, show
from promptcli.cli.options import (
    DataDir,
    Force,
    Json,
    choice_of,
    data_folder,
    default_backbone,
    takes_model,
)
from promptcli.grammar import parse_pooling
from promptcli.recipe import Choice
from promptcli.settings import PAPER

if TYPE_CHECKING:
    from promptcli.select.search import Ranked, Search

BackboneModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        "--backbone",
        help="Backbone: mini-bert (default), a folder, a hub id, or a model (its backbone).",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        metavar="TASK",
        help="Development set: a task, or a file of graded pairs. Default: STS-B:dev with"
        " --data-dir, else demo:dev.",
    ),
]
Name = Annotated[str | None, typer.Option(help="Save the best result as a model under this name.")]


def ditto_search(
    model: BackboneModel = None,
    on: On = None,
    corpus: Annotated[
        str,
        typer.Option(
            help="Sentences to count idf on, for the correlation with TF-IDF: a file, a task or"
            " demo."
        ),
    ] = "demo",
    weights: Annotated[
        str,
        typer.Option(
            help="How a head weighs tokens: by its diagonal (ditto), or by its row at the"
            " template's mask, in causal models at the last token (slot-attention)."
        ),
    ] = "ditto",
    name: Name = None,
    force: Force = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Rank all attention heads of a backbone by Ditto pooling, in one pass (Ditto, section 2)."""
    from promptcli.select.head_search import search_heads

    search = search_heads(
        choice_of(model or default_backbone()),
        on,
        corpus,
        weights=weights,
        name=name,
        force=force,
        data_dir=data_folder(data_dir),
    )
    _note_saved(search)
    if json:
        result_json(search.to_dict())
    else:
        _print_heads(search, corpus)


@takes_model("dim")
def search_layers(
    choice: Choice,
    on: On = None,
    weights: Annotated[
        list[str] | None,
        typer.Option(
            help="Weights to try on every layer, e.g. avg, last-token. Default: the recipe's."
        ),
    ] = None,
    name: Name = None,
    force: Force = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Rank the layers of a backbone for a recipe, in one pass."""
    from promptcli.select import layer_search

    if not choice.names_model:
        choice = choice_of(default_backbone())
    search = layer_search.search_layers(
        choice,
        on,
        weights=weights or (),
        name=name,
        force=force,
        data_dir=data_folder(data_dir),
    )
    _note_saved(search)
    if json:
        result_json(search.to_dict())
    else:
        _print_layers(search)


def search_templates(
    model: BackboneModel = None,
    on: On = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="greedy (PromptBERT, section 4.2): relation tokens, then prefix tokens around"
            " the best of them; free: a race among the templates of a grammar or a file, or"
            " those that a T5 writes; demonstrations: a race among examples in front of"
            " PromptEOL's template, on a causal model. Default: greedy; with --candidates or"
            " --t5 free."
        ),
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(
            help="For free: file of templates, one on each line. Default: those of the packaged"
            " grammar, templates/search.toml."
        ),
    ] = None,
    t5: Annotated[
        str | None,
        typer.Option(
            help="For free: T5 model (a folder or a hub id) that writes the candidates, as in"
            " LM-BFF."
        ),
    ] = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            help="For demonstrations and --t5: lines of word<TAB>definition, or of"
            " word<TAB>sentence that it sums up. Default: 235 shipped ones."
        ),
    ] = None,
    beam: Annotated[
        int, typer.Option(help="For --t5: templates to keep (in the paper 500).")
    ] = 100,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Number of candidates to draw. Default: 600 of the packaged grammar; all of"
            " --candidates, --pairs.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="For races: number of templates to list.")] = 10,
    seed: Annotated[
        int,
        typer.Option(help="For races: random seed of the draw and of the order of the pairs."),
    ] = 42,
    name: Name = None,
    force: Force = False,
    data_dir: DataDir = None,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper", help="Default to the papers' settings: bert-base-uncased, STS-B:dev."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Find the template that suits a backbone best (PromptBERT, section 4.2).

    A stopped search resumes from its cached scores.
    """
    from promptcli.select import template_search

    search = template_search.search_templates(
        choice_of(model or default_backbone(paper=paper)),
        on or (PAPER.development if paper else None),
        mode=mode,
        candidates=candidates,
        t5=t5,
        pairs=pairs,
        beam=beam,
        limit=limit,
        top=top,
        seed=seed,
        name=name,
        force=force,
        data_dir=data_folder(data_dir),
    )
    _note_saved(search)
    if json:
        result_json(search.to_dict())
    else:
        print_templates(search)
    note(
        "the score on the pairs that selected the template is optimistic; score it on other pairs"
        " with `promptcli eval`"
    )


def _note_saved(search: "Search") -> None:
    saved = f"saved as model {search.saved_as!r}" if search.saved_as else "is not saved; see --name"
    note(f"{search.best.choice} {saved}")


def _caption(search: "Search") -> None:
    task = search.task
    show(f"{task.label}, {len(task.pairs()):,} pairs, {task.text}")
    show("Spearman x 100, ± half of the 95% interval")


def _score(item: "Ranked") -> list[str]:
    return [f"{item.value:.2f}", half_interval(item.ci95)]


def _print_heads(search: "Search", corpus: str) -> None:
    """Print the best heads, the scores of all heads, and the selection bias."""
    from promptcli.select.head_search import HEAD_WEIGHTS

    _caption(search)
    weights = search.settings["weights"]
    show(
        f"best {len(search.ranked)} of {search.compared}; gain over the plain average of"
        f" the same states; correlation of the head's {HEAD_WEIGHTS[weights].part} with TF-IDF over"
        f" tokens (idf counted on {corpus})"
    )
    _print_poolings(search)
    best = str(parse_pooling(search.best.choice).states)
    values = search.maps[best].tolist()
    show("")
    show(f"{best} {weights}, every head")
    numbered = [[layer, *(f"{value:.1f}" for value in row)] for layer, row in enumerate(values, 1)]
    result_table(["layer", *map(str, range(1, len(values[0]) + 1))], numbered)
    _print_selection_bias(search, "head", "the plain average of its states")


def _print_layers(search: "Search") -> None:
    """Print the layers, best first, and the selection bias."""
    recipe = search.recipe
    _caption(search)
    own = search.baseline["own"].choice
    show(f"{recipe.backbone}, {recipe.prompt}; gain over {own}, the recipe's own")
    _print_poolings(search)
    _print_selection_bias(search, "layer", "the recipe's own layer")


def _print_poolings(search: "Search") -> None:
    """Print the poolings, best first, and the baselines."""
    heads = ["", "pooling", "value", "", "gain"]
    rows: list[list[object]] = []
    for rank, item in enumerate(search.ranked, 1):
        rows.append([rank, item.choice, *_score(item), f"{item.gain:+.2f}"])
        if item.tfidf is not None:
            heads[5:] = ["Pearson", "Spearman"]
            rows[-1] += [f"{item.tfidf.pearson:.2f}", f"{item.tfidf.spearman:.2f}"]
    for plain in search.baseline.values():
        if plain not in search.ranked:
            rows.append(["", plain.choice, *_score(plain)])
    result_table(heads, rows)


def print_templates(search: "Search") -> None:
    """Print the templates as PromptBERT's table 4, with the published scores, if any."""
    from promptcli.select.template_search import published_scores

    backbone = search.recipe.backbone
    published = published_scores(backbone, search.task.label)
    show(f"{backbone}; {search.recipe.pooling}, period rule; * the best")
    _caption(search)
    show(search.compared)
    heads = ["template", "", search.task.label, ""]
    if published:
        heads.append("published")
    rows: list[list[str]] = []
    for heading, templates in search.stages.items():
        rows.append([heading])
        for item in templates:
            if item in search.ranked:  # of a race, only the ``top`` are listed
                printed = f"{published[item.choice]:.2f}" if item.choice in published else "-"
                star = "*" if item is search.best else ""
                rows.append([item.choice, star, *_score(item), printed][: len(heads)])
    rows.append(["Without a template"])
    for item in search.baseline.values():
        rows.append([item.choice, "", *_score(item), "-"][: len(heads)])
    result_table(heads, rows)
    _print_verdict(search)


def _print_selection_bias(search: "Search", chosen: str, baseline: str) -> None:
    halves = search.cross_validation
    assert halves is not None
    show("")
    show(
        f"selection bias ({halves.choices} random splits): {halves.chosen:.2f} on the half that"
        f" chose the {chosen}, {halves.held_out:.2f} on the held-out half ({halves.gap:+.2f})"
    )
    show(f"gain over {baseline} on the held-out half: {halves.gain:+.2f}")
    show(f"the best {chosen} above was chosen in {halves.agreement:.0%} of the splits")
    _print_verdict(search)


def _print_verdict(search: "Search") -> None:
    """Print that a plain average is better than the best choice, if it is."""
    plain = search.better_baseline
    if plain is not None:
        ahead = plain.value - search.best.value
        show("")
        show(
            f"the plain average {plain.choice} is better: {plain.value:.2f}, {ahead:.2f} above the"
            " best choice"
        )
