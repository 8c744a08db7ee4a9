"""The command ``search``, which searches files without an index.

It imports nothing of an index (FAISS, Arrow's functions): it answers at once.
"""

from dataclasses import asdict, replace
from typing import Any

from promptcli.cli import console
from promptcli.cli.hits import (
    HitOptions,
    HitTable,
    choose_columns,
    figures,
    one_line,
    print_hit,
    rounded_way,
)
from promptcli.cli.options import Json
from promptcli.index import SearchIndexJob
from promptcli.index.basics import WAY_FIELDS
from promptcli.index.file_search import Line, SearchFilesJob


def search_files(job: SearchFilesJob, hits: HitOptions, json: Json = False) -> None:
    format = hits.name(json=json)
    columns = hits.columns
    lines = replace(job, columns=columns).run()
    table = HitTable()
    for line in lines:
        shown = choose_columns(columns, line.columns)
        if format == "json":
            console.result_json(_record(line, with_columns=bool(columns)))
        elif format == "csv":
            table.row(_csv_record(line), shown)
        else:
            _print_line(line, shown)
            if job.context:
                console.result("")
    for name in columns:
        if lines and not any(name in (line.columns or {}) for line in lines):
            console.note(f"no hit has a column {name!r}")
    if not lines:
        console.note(nothing_found(job.query, job))


def _record(line: Line, *, with_columns: bool) -> dict[str, Any]:
    record = {**asdict(line), "score": round(line.score, 6)}
    for name in WAY_FIELDS:
        del record[name]
    record |= rounded_way(line)
    if not with_columns:
        del record["columns"]
    return record


def _csv_record(line: Line) -> dict[str, Any]:
    """Return a line as a row, without the lines around it."""
    record = _record(line, with_columns=False)
    return {name: record[name] for name in record if name not in ("before", "after")}


def _print_line(line: Line, columns: dict[str, Any]) -> None:
    """Print a line that was found between those around it, as grep does."""
    for number, text in enumerate(line.before, line.line - len(line.before)):
        console.result_folded(f"        {line.file}-{number}- ", one_line(text))
    place = f"{line.file}:{line.line}"
    if line.end_line != line.line:
        place += f"-{line.end_line}"
    text = f"{line.heading}: {line.text}" if line.heading else line.text
    print_hit(f"{figures(line)}  {place}: ", one_line(text), columns)
    for number, text in enumerate(line.after, line.end_line + 1):
        console.result_folded(f"        {line.file}-{number}- ", one_line(text))


def nothing_found(query: str, job: SearchFilesJob | SearchIndexJob) -> str:
    """Return why a search has no hit: only its conditions can leave out every row."""
    least = []
    if job.min_score is not None:
        least.append(f"scores at least {job.min_score}")
    if job.min_rarity is not None:
        least.append(f"is closer than {job.min_rarity:g}% of random pairs")
    if least:
        reason = f"no row {' and '.join(least)} for {query!r}"
        return reason if job.where is None else f"{reason} among those that meet the condition"
    if job.where is not None:
        return "no row meets the condition"
    return f"no row matches {query!r}"
