"""``promptcli choose`` and ``adapt``: their tables, and the commands to type next."""

import dataclasses
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from promptcli.cli import options
from promptcli.cli.console import half_interval, note, print_json, print_line, print_table
from promptcli.cli.options import Json
from promptcli.settings import DEFAULT_MODEL

if TYPE_CHECKING:
    from promptcli.plugins.domain.choosing import ChoiceReport, ScoredRanking

KEY_VARIABLE = "OPENAI_API_KEY"  #: the environment variable of the key of endpoints
_HEADERS = ("model", "by", "nDCG@10", "", "to the best", "", "verdict", "sentences/s", "MB")
_CAPTION = (
    "nDCG@10: 100 if the right passage always comes first, 0 if it is never among the first ten."
    " Low figures are usual, because other passages would also answer: compare the rows with each"
    " other. ±: half of the 95% interval over the queries"
)
_ADAPT_HEADERS = (
    *("row", "your texts", "change", "verdict"),
    *("demo pairs", "change", "guides", "change"),
)

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE",
        help="Texts, tables (FILE:COLUMN names the column of the text), globs and folders.",
    ),
]
Title = Annotated[
    str | None,
    typer.Option(
        help="Column of a table that holds the title of a text. Default: a column called title,"
        " subject or the like."
    ),
]


def choose(
    files: Files,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="A further model, or openai:URL#NAME, a model behind an OpenAI-compatible"
            " endpoint; repeatable. The shipped models are always compared. The key of the"
            f" endpoint is read from {KEY_VARIABLE}.",
        ),
    ] = None,
    title: Title = None,
    queries: Annotated[
        int, typer.Option(min=50, help="Maximum number of queries, drawn at random.")
    ] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the draws.")] = 0,
    json: Json = False,
) -> None:
    """Compare models and rankings on your own texts, without labels.

    Queries are made from the texts: a heading asks for the text below it, a title for its body, a
    first sentence for the rest. Each model and ranking is scored by how high it ranks the passage
    that a query was taken from (nDCG@10).
    """
    from promptcli.plugins.domain import choosing

    chosen = choosing.choose(
        files,
        models=models or (),
        title=title,
        queries=queries,
        seed=seed,
        key=os.environ.get(KEY_VARIABLE) or None,
        runtime=options.choice_of(None),
    )
    advice = list(_advice(chosen, files))
    if json:
        print_json(_document(chosen, advice))
    else:
        print_table(_HEADERS, [_cells(ranking) for ranking in chosen.rankings])
        print_line(_CAPTION)
    for line in advice:
        note(line)


def _cells(ranking: "ScoredRanking") -> list[str]:
    cells = [
        ranking.model or "-",
        ranking.by,
        f"{ranking.ndcg:.1f}",
        half_interval(ranking.ci95, 1),
    ]
    if ranking.to_best is None or ranking.to_best_ci95 is None:
        cells += ["", "", "best"]
    else:
        verdict = "within chance" if ranking.is_as_good else "worse"
        cells += [f"{ranking.to_best:+.1f}", half_interval(ranking.to_best_ci95, 1), verdict]
    figures = (ranking.sentences_per_second, ranking.megabytes)
    return [*cells, *("-" if figure is None else f"{figure:,.0f}" for figure in figures)]


def _document(chosen: "ChoiceReport", advice: Sequence[str]) -> dict[str, Any]:
    rankings = []
    for ranking in chosen.rankings:
        figures = {**dataclasses.asdict(ranking), "within_chance": ranking.is_as_good}
        del figures["by_query"]
        rankings.append(figures)
    collection = chosen.queries
    queries = {
        "made": len(collection.queries),
        "kinds": collection.kinds,
        "possible": collection.all_queries,
        "passages": len(collection.passages),
        "all_passages": collection.all_passages,
        "files": collection.files,
    }
    return {"ways": rankings, "queries": queries, "advice": advice}


def _advice(chosen: "ChoiceReport", files: Sequence[str]) -> Iterator[str]:
    """Yield sentences that say which ranking to use."""
    best = _words(chosen.best)
    usable = chosen.best_here
    if usable is not chosen.best:
        yield f"best is {best}, but promptcli does not search with endpoints"
    yield f"use {_words(usable)}: {_search(usable.model, files, by=usable.by)}"
    as_good = [ranking for ranking in chosen.rankings[1:] if ranking.is_as_good]
    if as_good:
        others = ", ".join(map(_words, as_good))
        yield f"within chance of {best}: {others}"
    else:
        yield f"{best}: better than every other row beyond chance"
    if not any(query.grades for query in chosen.queries.queries):
        yield (
            "the queries were made from the texts, but people ask in other words: try some of your"
            " own questions before you decide"
        )


def _words(ranking: "ScoredRanking") -> str:
    """Return the name of a ranking, as a sentence has it."""
    if ranking.model is None:
        return "words alone"
    ranked = "meaning and words" if ranking.by == "both" else ranking.by
    return f"{ranking.model} by {ranked}"


def _search(model: str | None, files: Sequence[str], *, by: str | None = None) -> str:
    """Return the command of a search by a model."""
    options = [*(("-m", model) if model else ()), *(("--by", by) if by else ())]
    return f'promptcli search "your question" {shlex.join([*files, *options])}'


def adapt(
    files: Files,
    name: options.NewName,
    start: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="Model to start from: `mini`, or one that `promptcli train` made.",
        ),
    ] = DEFAULT_MODEL,
    title: Title = None,
    rows: Annotated[
        list[str] | None,
        typer.Option(
            "--row",
            help="Try only this training: pairs, pretrain, promptbert, simcse or dcpcse;"
            " repeatable. Default: all.",
        ),
    ] = None,
    hours: Annotated[
        float,
        typer.Option(
            max=1000, help="Longest time of all trainings, which sets their number of steps."
        ),
    ] = 1.0,
    margin: Annotated[
        float,
        typer.Option(
            min=0,
            max=100,
            help="Most points that a saved model may lose on other texts: Spearman x 100 on the"
            " demo's pairs, and nDCG@10 x 100 on questions about promptcli's guides.",
        ),
    ] = 2.0,
    seed: Annotated[
        int, typer.Option(min=0, help="Random seed of the split and of the trainings.")
    ] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the stopped run of that name.")
    ] = False,
    force: options.Force = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Time a few steps, print the plan with its duration, and stop.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Train a model on your own texts, without labels, and keep it if it finds more in them.

    Queries are made from the texts: a heading, a title or a first sentence, each with the passage
    that it was taken from. Some documents are held out. Several trainings are tried on the others:
    on the queries with their passages, and by the papers' methods on the sentences. The best model
    is saved if it finds more of the held-out passages than before, beyond chance, and is about as
    good as before on other texts.
    """
    from promptcli.plugins.domain import adapting

    adapted = adapting.adapt(
        files,
        name=name,
        start=options.choice_of(start),
        title=title,
        rows=rows or (),
        hours=hours,
        margin=margin,
        seed=seed,
        resume=resume,
        force=force,
        dry_run=dry_run,
    )
    document = adapted.document
    if json:
        print_json(document)
    elif dry_run:
        planned = [
            [row["row"], row["learns_from"], f"{row['steps']:,}", f"{row['minutes']:.1f}"]
            for row in document["rows"]
        ]
        print_table(["row", "learned from", "steps at most", "minutes"], planned)
        print_line(f"at most about {document['hours']:.2f} hours; nothing was trained or saved")
    else:
        _show_adapted(document)


def _show_adapted(document: Mapping[str, Any]) -> None:
    rows = []
    for row in document["rows"]:
        cells = []
        for number, score in enumerate(row["scores"]):
            change = ""
            if "changes" in row:
                gained = row["changes"][number]
                change = f"{gained['value']:+.1f} {half_interval(gained['ci95'], 1)}"
            cells += [f"{score['value']:.1f}", change]
        rows.append([row["row"], *cells[:2], row["verdict"], *cells[2:]])
    print_table(_ADAPT_HEADERS, rows)
    for name, reason in document["left_out"].items():
        note(f"{name} was left out: {reason}")
    note(
        f"your texts: nDCG@10 x 100 of {document['queries']['test']:,} queries made from documents"
        " that were held out; 100: the right passage is always first"
    )
    note(
        "demo pairs and guides: the same model on other texts, graded pairs (Spearman x 100) and"
        " questions (nDCG@10 x 100); a large loss there means that the model forgot"
    )
    note(
        "change: the difference to the row `as it is`. A change smaller than its ± may be chance."
        " Several trainings were tried, so a slightly larger change may also be chance; the verdict"
        " takes this into account. dcpcse begins with the pre-trained backbone, as in its paper, so"
        " it lacks what the model had learned"
    )
    print_line(document["reason"])
    files = document["files"]
    model = document["saved"]
    if model is None:
        start = document["start"]
        print_line(f"nothing saved; go on with {start}: {_search(start, files)}")
    else:
        print_line(f"saved as model {model!r}; use it: {_search(model, files)}")
        sync = shlex.join(["promptcli", "index", "sync", f"{model}.index", *files, "-m", model])
        print_line(f"or keep an index of these files: {sync}")
