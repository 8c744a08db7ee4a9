"""The commands ``ditto-search``, ``search-layers`` and ``search-templates``, which select a head, a
layer and a template.
"""

from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli.console import half_interval, note, print_json, print_table, show
from promptcli.cli.options import (
    BackboneModel,
    DataDir,
    Force,
    Json,
    choice_of,
    data_folder,
    default_backbone,
    takes_model,
)
from promptcli.grammar import parse_pooling
from promptcli.recipe import ModelChoice, is_chosen
from promptcli.settings import PAPER

if TYPE_CHECKING:
    from promptcli.select.search import ScoredChoice, SearchResult

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
            help="Sentences on which idf is counted, for the correlation with TF-IDF: a file, a"
            " task or demo."
        ),
    ] = "demo",
    weights: Annotated[
        str,
        typer.Option(
            help="How a head weighs tokens: ditto, by its diagonal; slot-attention, by its row at"
            " the template's mask, or at the last token in causal models."
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
        print_json(search.to_dict())
    else:
        _print_heads(search, corpus)


@takes_model("dim")
def search_layers(
    choice: ModelChoice,
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

    if not is_chosen(choice):
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
        print_json(search.to_dict())
        return
    recipe = search.recipe
    own_pooling = search.baselines["own"].choice
    _print_caption(search)
    show(f"{recipe.backbone}, {recipe.prompt}; gain over {own_pooling}, the recipe's own")
    _print_poolings(search)
    _print_selection_bias(search, "layer", "the recipe's own layer")


def search_templates(
    model: BackboneModel = None,
    on: On = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="greedy (PromptBERT, section 4.2): relation tokens, then prefix tokens around"
            " the best of them; free: a race among the templates of a grammar or a file, or"
            " those that a T5 writes; demonstrations: a race among examples in front of"
            " PromptEOL's template, on a causal model. Default: greedy; free with --candidates"
            " or --t5."
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
            help="For demonstrations and --t5: file with lines of word<TAB>definition, or of"
            " word<TAB>sentence, where the word sums up the sentence. Default: 235 shipped"
            " lines."
        ),
    ] = None,
    beam: Annotated[
        int, typer.Option(help="For --t5: number of templates to keep (500 in the paper).")
    ] = 100,
    limit: Annotated[
        int | None,
        typer.Option(
            help="Number of candidates to draw. Default: 600 of the packaged grammar; all lines"
            " of --candidates or --pairs.",
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
        print_json(search.to_dict())
    else:
        print_templates(search)
    note(
        "the score on the pairs that selected the template is optimistic; score it on other pairs"
        " with `promptcli eval`"
    )


def _note_saved(search: "SearchResult") -> None:
    saved = f"saved as model {search.saved_as!r}" if search.saved_as else "is not saved; see --name"
    note(f"{search.best.choice} {saved}")


def _print_caption(search: "SearchResult") -> None:
    task = search.task
    show(
        f"{task.label}, {len(task.pairs()):,} pairs, {task.text}",
        "Spearman x 100, ± half of the 95% interval",
    )


def _score(item: "ScoredChoice") -> list[str]:
    return [f"{item.value:.2f}", half_interval(item.ci95)]


def _print_heads(search: "SearchResult", corpus: str) -> None:
    """Print the best heads, the scores of all heads, and the selection bias."""
    from promptcli.select.head_search import HEAD_WEIGHTS

    _print_caption(search)
    weights = search.settings["weights"]
    show(
        f"best {len(search.ranked)} of {search.compared_in_words}; gain over the plain average of"
        f" the same states; correlation of the head's {HEAD_WEIGHTS[weights].source} with TF-IDF"
        f" over tokens (idf counted on {corpus})"
    )
    _print_poolings(search)
    states = str(parse_pooling(search.best.choice).states)
    scores = search.maps[states].tolist()
    show("", f"{states} {weights}, every head")
    rows = [[layer, *(f"{score:.1f}" for score in row)] for layer, row in enumerate(scores, 1)]
    print_table(["layer", *map(str, range(1, len(scores[0]) + 1))], rows)
    _print_selection_bias(search, "head", "the plain average of its states")


def _print_poolings(search: "SearchResult") -> None:
    """Print the poolings, best first, and the baselines."""
    headers = ["", "pooling", "value", "", "gain"]
    rows: list[list[object]] = []
    for rank, item in enumerate(search.ranked, 1):
        rows.append([rank, item.choice, *_score(item), f"{item.gain:+.2f}"])
        if item.tfidf is not None:
            headers[5:] = ["Pearson", "Spearman"]
            rows[-1] += [f"{item.tfidf.pearson:.2f}", f"{item.tfidf.spearman:.2f}"]
    for baseline in search.baselines.values():
        if baseline not in search.ranked:
            rows.append(["", baseline.choice, *_score(baseline)])
    print_table(headers, rows)


def print_templates(search: "SearchResult") -> None:
    """Print the templates as in PromptBERT's table 4, next to their published scores, if any."""
    from promptcli.select.template_search import published_scores

    backbone = search.recipe.backbone
    published = published_scores(backbone, search.task.label)
    show(f"{backbone}; {search.recipe.pooling}, period rule; * the best")
    _print_caption(search)
    show(search.compared_in_words)
    headers = ["template", "", search.task.label, ""]
    if published:
        headers.append("published")
    rows: list[list[str]] = []
    for heading, templates in search.stages.items():
        rows.append([heading])
        for item in templates:
            if item in search.ranked:  # a race lists only the best ones, see ``--top``
                figure = f"{published[item.choice]:.2f}" if item.choice in published else "-"
                star = "*" if item is search.best else ""
                rows.append([item.choice, star, *_score(item), figure][: len(headers)])
    rows.append(["Without a template"])
    for item in search.baselines.values():
        rows.append([item.choice, "", *_score(item), "-"][: len(headers)])
    print_table(headers, rows)
    _print_better_baseline(search)


def _print_selection_bias(search: "SearchResult", kind: str, baseline: str) -> None:
    halves = search.cross_validation
    assert halves is not None
    show(
        "",
        f"selection bias ({halves.choices} random splits): {halves.chosen:.2f} on the half that"
        f" chose the {kind}, {halves.held_out:.2f} on the held-out half ({halves.gap:+.2f})",
        f"gain over {baseline} on the held-out half: {halves.gain:+.2f}",
        f"the best {kind} above was chosen in {halves.agreement:.0%} of the splits",
    )
    _print_better_baseline(search)


def _print_better_baseline(search: "SearchResult") -> None:
    """Print that a plain average is better than the best choice, if it is."""
    baseline = search.better_baseline
    if baseline is not None:
        ahead = baseline.value - search.best.value
        show(
            "",
            f"the plain average {baseline.choice} is better: {baseline.value:.2f}, {ahead:.2f}"
            " above the best choice",
        )
