"""The commands ``index ...``: build, change and search an index."""

import functools
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli import console
from promptcli.cli.commands.models import method_line
from promptcli.cli.hits import HitPrinter, cut_line, nothing_found, score_text
from promptcli.cli.options import (
    By,
    Check,
    Csv,
    Exclude,
    Force,
    IdField,
    Json,
    MinScore,
    NoIgnore,
    Rows,
    SkipBad,
    Split,
    TextField,
    Threshold,
    Verbose,
    Where,
    chosen_model,
    stream_or_name,
    takes_model,
    takes_options,
)
from promptcli.data.csv_options import csv_options
from promptcli.errors import CheckFailedError, UsageError, with_count
from promptcli.recipe import ModelChoice, Recipe
from promptcli.storage.files import check_output

if TYPE_CHECKING:
    from promptcli.retrieval.sentence_index import SentenceIndex
    from promptcli.retrieval.sync import SyncResult

Folder = Annotated[str, typer.Argument(metavar="DIR", help="Folder of the index.")]
SentenceFile = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="Sentences, as for `embed` (- for standard input), or vectors that `embed` wrote: a"
        " file, or a folder of Parquet parts.",
    ),
]
OwnModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="Encoder of the index, for example if its folder was moved. Default: the one that"
        " the index names.",
    ),
]
Lexical = Annotated[
    bool | None,
    typer.Option(
        "--lexical/--no-lexical",
        help="Also count words (BM25), so that a search finds names and codes.",
    ),
]


@takes_model()
def build(
    choice: ModelChoice,
    file: SentenceFile,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="DIR", help="Folder of the index.")
    ],
    factory: Annotated[
        str | None,
        typer.Option(
            help="FAISS factory string, e.g. Flat (exact), HNSW32 or IVF256,SQ8. Default: by the"
            " number of rows."
        ),
    ] = None,
    target_recall: Annotated[
        float,
        typer.Option(help="recall@10 that an approximate index should reach; 1 searches exactly."),
    ] = 0.95,
    text_field: TextField = None,
    id_field: IdField = None,
    rows: Rows = None,
    split: Split = False,
    lexical: Lexical = True,
    force: Force = False,
    csv: Csv = None,
    skip_bad: SkipBad = False,
) -> None:
    """Index sentences, or vectors that `embed` wrote, for search by meaning and by words.

    A text with paragraphs is split into passages, with their headings and the ids FILE:LINES; any
    other text is split into its lines, whose ids are their numbers from 0. Rows without text are
    left out. Other columns of a table, the places of passages and their front matter are kept for
    conditions.
    """
    from promptcli.retrieval.sentence_index import SentenceIndex

    index = SentenceIndex.build(
        stream_or_name(file),
        choice,
        output=output,
        rows=rows or "auto",
        text_field=text_field,
        id_field=id_field,
        split=split,
        lexical=lexical is not False,
        factory=factory,
        target_recall=target_recall,
        force=force,
        csv=csv_options(csv),
        skip_bad=skip_bad,
    )
    _note_rows(output, index)


def add(
    folder: Folder,
    file: SentenceFile,
    model: OwnModel = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace rows with the same ids, and add the others."),
    ] = False,
    allow_duplicates: Annotated[
        bool,
        typer.Option(
            "--allow-duplicates",
            help="Also add rows whose text the index has under another id.",
        ),
    ] = False,
    text_field: TextField = None,
    id_field: IdField = None,
    csv: Csv = None,
    skip_bad: SkipBad = False,
) -> None:
    """Add sentences, or vectors of the same encoder, to an index.

    Row numbers that serve as ids begin at 0 and continue after the last row of the index.
    """
    index = _open(folder, model)
    replaced = index.add(
        stream_or_name(file),
        replace=replace,
        allow_duplicates=allow_duplicates,
        text_field=text_field,
        id_field=id_field,
        csv=csv_options(csv),
        skip_bad=skip_bad,
    )
    if replace:
        console.note(f"{with_count(replaced, 'row')} of the index replaced")
    _note_rows(folder, index)


def delete(
    folder: Folder,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of the rows.")],
) -> None:
    """Delete rows by their ids: they no longer appear in results.

    `index compact` frees their space.
    """
    index = _open(folder)
    console.note(f"{with_count(index.delete(ids), 'row')} deleted")
    _note_rows(folder, index)


def compact(folder: Folder, lexical: Lexical = None) -> None:
    """Free the space of deleted rows, and make the files for fast search again."""
    index = _open(folder)
    index.compact(lexical=lexical)
    _note_rows(folder, index)


def migrate(
    folder: Folder,
    model: Annotated[
        str,
        typer.Option(
            "--model", "-m", help="New encoder: a model's name, a recipe, a folder or a hub id."
        ),
    ],
) -> None:
    """Encode the texts of an index with another model, under the same ids.

    The old vectors answer until the new ones are complete. After an interruption, the same command
    continues.
    """
    index = _open(folder)
    index.migrate(chosen_model(model))
    _note_rows(folder, index)


def info(folder: Folder, json: Json = False) -> None:
    """Describe an index: its rows, type, encoder and columns."""
    info = _open(folder).info()
    if json:
        console.print_json({"index": folder, **asdict(info)})
        return
    recall = "exact"
    if info.recall is not None:
        figures = [f"{name} {value:g}" for name, value in info.recall.items() if name != "rows"]
        recall = ", ".join(figures).replace("at_10", "recall@10")
    rows = f"{info.rows:,} of {info.dim:,} dimensions"
    lines = {
        "index": folder,
        "rows": rows if info.texts else f"{rows}, without texts",
        "factory": f"{info.factory} ({recall})",
        "model": f"{info.name} ({info.fingerprint[:12]})".lstrip(),
        "recipe": method_line(Recipe.from_dict(info.recipe)),
        "backbone": info.recipe["backbone"],
    }
    if info.columns:
        lines["columns"] = ", ".join(f"{name} ({kind})" for name, kind in info.columns.items())
    if info.prompt:
        lines["prompt"] = f"documents begin with {info.prompt}"
    lines["created"] = info.created
    console.print_table((), list(lines.items()))


@takes_model()
def sync(
    choice: ModelChoice,
    folder: Annotated[
        str,
        typer.Argument(metavar="DIR", help="Folder of the index; created if it is missing."),
    ],
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="Texts, tables (FILE:COLUMN names the column of the text), globs and folders."
            " In a folder, hidden and ignored files, and files that are not text, are left"
            " out. Default: the files of the last sync.",
        ),
    ] = None,
    rows: Rows = None,
    text_field: TextField = None,
    id_field: IdField = None,
    split: Split = False,
    lexical: Lexical = None,
    no_ignore: NoIgnore = False,
    exclude: Exclude = None,
    yes: Annotated[
        bool,
        typer.Option("--yes", help="Remove rows even if they are more than half of the index."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the rows that would change, and change nothing."),
    ] = False,
    csv: Csv = None,
    skip_bad: SkipBad = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Make an index match files: it gets exactly their passages and table rows, with the ids
    FILE:LINES.

    Only new and changed texts are encoded; with another model, all texts.
    """
    from promptcli.retrieval.sync import TooManyRemovalsError
    from promptcli.retrieval.sync import sync as sync_index

    update = functools.partial(
        sync_index,
        folder,
        files or None,
        model=choice,
        rows=rows,
        text_field=text_field,
        id_field=id_field,
        split=split,
        lexical=lexical,
        ignore=not no_ignore,
        exclude=exclude or (),
        csv=csv_options(csv),
        skip_bad=skip_bad,
        verbose=verbose,
    )
    try:
        changes = update(yes=yes, dry_run=dry_run)
    except TooManyRemovalsError as error:
        if not console.confirm(f"{error.question}. Remove them"):
            raise UsageError(
                f"{error.question}; --yes removes them, --dry-run shows them"
            ) from None
        changes = update(yes=True)
    if dry_run:
        _show_changes(changes, as_json=json)
    elif json:
        console.print_json({"index": folder, **changes.report()})
    else:
        _note_rows(folder, changes.index)


def _show_changes(changes: "SyncResult", *, as_json: bool) -> None:
    """Print the rows that a sync would add and remove."""
    for sign, kind, rows in (("+", "added", changes.added), ("-", "removed", changes.removed)):
        for row_id, text in rows:
            if as_json:
                console.print_json({"change": kind, "id": row_id, "text": text})
            else:
                console.print_line(f"{sign} {cut_line(row_id)}  {cut_line(text)}")
    console.note("nothing was changed")


@takes_options("printer", HitPrinter)
def search(
    printer: HitPrinter,
    folder: Folder,
    query: Annotated[
        str,
        typer.Argument(
            metavar="QUERY",
            help="A sentence, or the name of a file of sentences, or - for standard input.",
        ),
    ],
    k: Annotated[
        int, typer.Option("-k", min=1, help="Maximum number of hits for each query.")
    ] = 10,
    model: OwnModel = None,
    by: By = None,
    min_score: MinScore = None,
    where: Where = None,
    sync: Annotated[
        bool,
        typer.Option("--sync", help="First update the index from its files, as `index sync` does."),
    ] = False,
    text_field: TextField = None,
) -> None:
    """Print the k rows of an index that are nearest to each query, best first, with their
    cosine.
    """
    from promptcli.data.input_files import names_file
    from promptcli.models.language import note_unread
    from promptcli.retrieval.files import queries_of
    from promptcli.retrieval.sentence_index import check_search

    check_search(k, by, where)
    index = _open(folder, model)
    if sync:
        index = index.sync(folder, model=chosen_model(model)).index
    elif states := list(index.stale_files().values()):
        counts = ", ".join(f"{states.count(state):,} {state}" for state in ("changed", "gone"))
        console.note(
            f"files of the index: {counts}; --sync, or `promptcli index sync {folder}`, brings it"
            " up to date"
        )
    printer.check_columns(index.info().columns)
    if not query.strip():
        raise UsageError("the query is empty; type a sentence, or the name of a file of sentences")
    is_file = query == "-" or names_file(query)
    blocks = queries_of(stream_or_name(query), text_field) if is_file else [[query]]
    encoder = None
    if index.resolve_by(by) != "words":
        encoder = index.open_encoder().in_role("query", report=True)
    for number, texts in enumerate(blocks):
        if encoder is not None and number == 0:
            note_unread(encoder, texts)
        answers = index.answer(
            texts,
            k,
            by=by,  # type: ignore[arg-type]
            where=where,
            min_score=min_score,
            explain=printer.explains,
        )
        for text, hits in zip(texts, answers, strict=True):
            if printer.format == "table" and is_file:
                console.print_line(f"query: {cut_line(text)}")
            printer.print_hits(hits, {"query": text})
            if not hits:
                console.note(nothing_found(text, min_score, where))


@takes_options("printer", HitPrinter, "explain")
def dups(
    printer: HitPrinter,
    folder: Folder,
    threshold: Threshold = 0.95,
    links: Annotated[
        str,
        typer.Option(
            help="complete: every two rows of a group reach the threshold. chain: each row reaches"
            " it with another row of its group; two rows of a group may be far apart."
        ),
    ] = "complete",
    differ: Annotated[
        str | None,
        typer.Option(help="numbers: rows whose numbers differ are not duplicates."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="first|last|COLUMN",
            help="Row of each group to keep in the output; with COLUMN, the one with the highest"
            " value.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="CSV file to write, with all rows but only one of each group.",
        ),
    ] = None,
    force: Force = False,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Find the rows of this file, or index, that also occur in the index.",
        ),
    ] = None,
    model: OwnModel = None,
    csv: Csv = None,
    skip_bad: SkipBad = False,
    check: Check = False,
) -> None:
    """Print groups of near-duplicates, the largest first, each with its lowest cosine; or, with
    --against, the rows of another set that also occur in the index.

    Vectors do not show every difference: rows may be near although their numbers, names or word
    order differ.
    """
    from promptcli.retrieval.pairs import check_keep, write_without_duplicates

    index = _open(folder, model)
    printer.check_columns(index.info().columns)
    if against is not None:
        leaks = index.leaks(
            stream_or_name(against), threshold, csv=csv_options(csv), skip_bad=skip_bad
        )
        printer.print_leaks(leaks, (against, folder), check=check)
        return
    if (keep is None) != (output is None):
        raise UsageError("--keep and --output FILE are used together; one of them is missing")
    if keep is not None and output is not None:
        check_output(output, force=force)
        check_keep(keep, index.info().columns)
    groups = index.dups(threshold, links=links, differ=differ)
    for number, group in enumerate(groups, 1):
        if printer.format == "table":
            rows = with_count(len(group), "row")
            console.print_line(f"{rows}, lowest cosine {score_text(group.lowest)}")
        first_fields = {"cluster": number, "size": len(group), "lowest": group.lowest}
        printer.print_hits(group, first_fields)
    if keep is not None and output is not None:
        left_out = write_without_duplicates(index, groups, keep, output)
        console.note(f"{output}: {with_count(len(index) - left_out, 'row')}; {left_out:,} left out")
    duplicates = sum(len(group) - 1 for group in groups)
    summary = (
        f"{with_count(len(groups), 'group')}; {duplicates:,} of {with_count(len(index), 'row')} of"
        f" {folder} repeat another row"
    )
    if check and duplicates:
        raise CheckFailedError(summary)
    console.note(summary)


def _open(folder: str, model: str | None = None) -> "SentenceIndex":
    from promptcli.retrieval.sentence_index import SentenceIndex

    return SentenceIndex.open(folder, chosen_model(model))


def _note_rows(folder: str, index: "SentenceIndex") -> None:
    console.note(f"{folder}: {with_count(len(index), 'row')}")
