"""``promptcli ditto-search``, ``search-layers`` and ``search-templates``: the best head, layer, template."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli.console import half_interval, note, out, result, result_json, result_table
from promptcli.cli.options import (
    BackboneName,
    DataDir,
    FieldOptions,
    Force,
    Json,
    ModelOptions,
    Runtime,
    data_folder,
    default_backbone,
    option_in,
    options_of,
)
from promptcli.cli.pictures.maps import head_map
from promptcli.cli.pictures.plots import PictureOptions, draw_head_maps
from promptcli.searching.search_settings import SearchSettings
from promptcli.settings import BARE, PAPER

if TYPE_CHECKING:
    from promptcli.data.tasks import STSTask
    from promptcli.searching.search import Ranked, Search


@dataclass(frozen=True)
class SearchOptions:
    """What a search chooses by, and where the best goes."""

    on: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Development set: a task, or a file of graded pairs. Default: STS-B:dev with --data-dir, else demo:dev"
            " (our own pairs, no benchmark).",
        ),
    ] = None
    data_dir: DataDir = None
    name: Annotated[
        str | None,
        typer.Option(help="Save the best as a model under this name; of several backbones NAME-BACKBONE."),
    ] = None
    json: Json = False

    def given(self, runtime: Runtime, *, force: bool, paper: bool = False) -> dict[str, Any]:
        """Return what every search of the library takes, and say what is assumed."""
        folder = data_folder(self.data_dir)
        on = self.on or (PAPER.development if paper or folder is not None else BARE.development)
        if self.on is None and not paper:
            note(f"assumed: --on {on}; the papers' setting: --on {PAPER.development} --model {PAPER.backbone}")
        return {"on": on, "data_dir": folder, "name": self.name, "force": force, **runtime.where}

    def show(self, found: "Search", write: "Callable[[Search], None]") -> None:
        """Print what was found, and say what was saved."""
        _say_kept(found, self.name)
        if self.json:
            result_json({**found.to_dict(), "model": self.name})
        else:
            write(found)


def print_task(task: "STSTask") -> None:
    """Print which pairs chose, and what the figures below are."""
    result(f"{task.label}, {len(task.pairs()):,} pairs, {task.text}")
    result("Spearman x 100, ± half of the 95% interval")


def _say_kept(found: "Search", name: str | None) -> None:
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
        f"\nluck: chosen on one half of the pairs, scored on the other, {luck.choices} times:\n"
        f"{luck.chosen:.2f} there, {luck.held_out:.2f} here ({luck.gap:+.2f}); {luck.gain:+.2f} over {over} here;\n"
        f"{top} chosen {luck.agreement:.0%} of the time"
    )


def ditto_search(
    model: BackboneName = None,
    states: Annotated[
        list[str] | None, typer.Option(help="static, last, first-last; repeatable. Default: all three.")
    ] = None,
    corpus: Annotated[str, typer.Option(help="Sentences to count idf on: a file, a task or `demo`.")] = "demo",
    top: Annotated[int, typer.Option(min=1, help="How many heads to list.")] = 10,
    *,
    search: SearchOptions,
    picture: PictureOptions,
    runtime: Runtime,
) -> None:
    """Rank all attention heads of a backbone by Ditto pooling, in one pass.

    Every layer-head (both counted from 1) is tried on static, last and first-last states. The figures are those of
    `promptcli eval --pooling STATES/ditto:LAYER-HEAD` on the development set.
    """
    picture.check()
    from promptcli.searching.searches import search_heads

    options = search.given(runtime, force=picture.force) | ({"states": states} if states else {})
    found = search_heads(model or default_backbone(), corpus=corpus, top=top, **options)
    backbone = found.recipe.backbone
    picture.draw(draw_head_maps, found.maps, f"{backbone} on {found.task.label}: Spearman x 100 of every head")
    search.show(found, lambda found: _print_heads(found, corpus))


def _print_heads(found: "Search", corpus: str) -> None:
    """Print the ranked heads, the plain averages, one heat map and what the choice is worth."""
    print_task(found.task)
    result(f"best {len(found.ranked)} of {found.about['compared']}; gain over the plain average of the same states;")
    result(f"correlation of the head's diagonal with TF-IDF over tokens (idf counted on {corpus})")
    rows = []
    for rank, head in enumerate(found.ranked, 1):
        states, _, name = head.choice.partition("/ditto:")
        alike = [] if head.tfidf is None else [f"{head.tfidf.pearson:.2f}", f"{head.tfidf.spearman:.2f}"]
        rows.append([str(rank), name, states, *_figures(head), f"{head.gain:+.2f}", *alike])
    for states, plain in found.baseline.items():
        rows.append(["", "plain", states, *_figures(plain), "", "", ""])
    result_table(["", "head", "states", "value", "", "gain", "Pearson", "Spearman"], rows)
    states = found.best.choice.partition("/")[0]
    result(f"\n{states} Ditto, every head")
    for line in head_map(found.maps[states].tolist()):
        out.print(line)
    _print_luck(found, "the plain average of its states", "the head on top was")


def search_layers(
    weights: Annotated[
        list[str] | None,
        typer.Option(help="Weights to try on every layer, e.g. avg, last-token; repeatable. Default: the recipe's."),
    ] = None,
    force: Force = False,
    *,
    search: SearchOptions,
    choice: ModelOptions,
    runtime: Runtime,
) -> None:
    """Rank the layers of a backbone as a recipe reads them, in one pass.

    Every layer (0: the embeddings), the last, and the means of first and last. The figures are those of
    `promptcli eval --pooling STATES/WEIGHTS` on the development set.
    """
    from promptcli.searching import searches as searching

    found = searching.search_layers(choice.choice(), weights=weights or (), **search.given(runtime, force=force))
    search.show(found, _print_layers)


def _print_layers(found: "Search") -> None:
    print_task(found.task)
    recipe = found.recipe
    result(f"{recipe.backbone}, {recipe.prompt}; gain over {found.baseline['own'].choice}, the recipe's own")
    rows = [[row.choice, *_figures(row), f"{row.gain:+.2f}"] for row in found.ranked]
    result_table(["pooling", "value", "", "gain"], rows)
    _print_luck(found, "the recipe's own", "the states on top were")


_scoring = option_in("Scoring")


@options_of(SearchSettings, panel="What is tried", flags={"t5": "--t5"})
class SpaceOptions(FieldOptions):
    """What is tried."""


@dataclass(frozen=True)
class ScoringOptions:
    """How a template is scored."""

    model: Annotated[
        list[str] | None,
        _scoring(
            "--model",
            "-m",
            "--backbone",
            help="Backbone: `mini-bert`, a folder, a hub id, or a model's; repeatable, for a table across them."
            " Default: mini-bert.",
        ),
    ] = None
    period: Annotated[
        bool,
        _scoring(
            "--period/--no-period", help="Append '.' to a sentence without an end mark (PromptBERT's evaluation)."
        ),
    ] = True
    denoise: Annotated[str, _scoring(help="none, or hidden: minus the template's own bias.")] = "none"
    paper: Annotated[
        bool,
        _scoring("--paper", help="Use the papers' settings for whatever is not given: bert-base-uncased, STS-B:dev."),
    ] = False


def search_templates(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File of the best templates. Default with --name: templates/NAME.toml at home."
        ),
    ] = None,
    force: Force = False,
    *,
    search: SearchOptions,
    space: SpaceOptions,
    scoring: ScoringOptions,
    runtime: Runtime,
) -> None:
    """Find the template that suits a backbone best.

    A search that was killed resumes from its cached scores.
    """
    from promptcli.searching import searches as searching

    models = list(dict.fromkeys(scoring.model or [default_backbone(paper=scoring.paper)]))
    options = search.given(runtime, force=force, paper=scoring.paper)
    options |= {"period": scoring.period, "denoise": scoring.denoise, "output": output}
    found = searching.search_all_templates(models, settings=SearchSettings(**space.changes()), **options)
    names = searching.saved_names(search.name, found)
    if search.json:
        searches = [{**one.to_dict(), "model": saved} for saved, one in zip(names, found, strict=True)]
        result_json({"searches": searches})
    else:
        _print_templates(names, found)
    for saved, one in zip(names, found, strict=True):
        _say_kept(one, saved)
    note("a figure on the pairs that chose a template flatters it; score others with `promptcli eval`")


def print_search(found: "Search") -> None:
    """Print one backbone's templates as PromptBERT's table 4, the published figures next to them where there are any.

    A search of a single stage is cut to its ``top``.
    """
    from promptcli.searching.template_space import published_scores

    recipe, task = found.recipe, found.task
    published = published_scores(recipe.backbone, task.label) if recipe.period and recipe.denoise == "none" else {}
    listed = set(map(id, found.ranked))
    rows: list[list[str]] = []
    for heading, templates in found.stages.items():
        rows.append([heading, "", "", "", ""])
        for item in templates:
            if id(item) in listed:
                row = [item.choice, "*" if item is found.best else "", *_figures(item)]
                rows.append([*row, f"{published[item.choice]:.2f}" if item.choice in published else "-"])
    result(f"{recipe.backbone} on {task.label} ({len(task.pairs()):,} pairs, {task.text})")
    result(
        f"Spearman x 100 ± half of the 95% bootstrap interval; {recipe.pooling}, period rule"
        f" {'on' if recipe.period else 'off'}, denoise {recipe.denoise}; * the best"
    )
    result(found.about["compared"])
    heads = ["template", "", task.label, "", "published"]
    result_table(heads, rows) if published else result_table(heads[:-1], [row[:-1] for row in rows])


def _print_templates(names: "list[str | None]", found: "list[Search]") -> None:
    """Print each backbone's templates; of several, each one's best with the model that holds it, too."""
    for one in found:
        print_search(one)
    if len(found) == 1:
        return
    rows = [
        [one.recipe.backbone, *_figures(one.best), name or "-", one.best.choice]
        for name, one in zip(names, found, strict=True)
    ]
    result("")
    result_table(["backbone", found[0].task.label, "", "model", "best template"], rows)


def _figures(item: "Ranked") -> list[str]:
    return [f"{item.value:.2f}", half_interval(item.ci95)]
