"""Rows of one set that also occur in another, as lines that fit the terminal, CSV or JSON."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from promptcli.cli import console
from promptcli.cli.grids import Grid
from promptcli.cli.hits import (
    HitTable,
    choose_columns,
    one_line,
    print_hit,
    rarity_text,
    score_text,
)
from promptcli.errors import CheckFailedError, counted

if TYPE_CHECKING:
    from promptcli.index.leakage import Kind, Leak, Leaks

#: The relation, by kind, of a row of the one set to a row of the other.
_MEANS: "dict[Kind, str]" = {
    "exact": "the same text",
    "normalised": "the same but for case, spaces and forms of characters",
    "near": "near by cosine",
}
_SIGNS: "dict[Kind, str]" = {"exact": "=", "normalised": "=", "near": "~"}


def show_leaks(
    leaks: "Leaks",
    names: tuple[str, str],
    format: str,
    columns: Sequence[str] = (),
    *,
    check: bool = False,
) -> None:
    """Print the rows of a set that also occur in another, and their number; with ``check`` fail if
    there are any. ``names`` are those of the set and of the other one.
    """
    if format == "json":
        console.result_json(_document(leaks))
    elif format == "csv":
        table = HitTable()
        for leak in leaks.found:
            table.row(_record(leak), choose_columns(columns, leak.source.columns))
    else:
        for leak in leaks.found:
            _print_leak(leak, choose_columns(columns, leak.source.columns))
        _print_counts(leaks)
    if check and leaks.found:
        raise CheckFailedError(_summary(leaks, names))
    if format == "table":
        console.note(_summary(leaks, names))


def _summary(leaks: "Leaks", names: tuple[str, str]) -> str:
    """Return how many rows were found; those that are near by cosine do not occur in the set."""
    verb = "occur in, or are near a row of," if leaks.counts["near"] else "occur in"
    return (
        f"{len(leaks.found):,} of {counted(leaks.rows, 'row')} of {names[0]} (left)"
        f" {verb} the {leaks.source_rows:,} of {names[1]} (right)"
    )


def _document(leaks: "Leaks") -> dict[str, Any]:
    return {
        "rows": leaks.rows,
        "source_rows": leaks.source_rows,
        "found": len(leaks.found),
        "share": round(leaks.share, 6),
        "kinds": leaks.counts,
        "threshold": leaks.threshold,
        "leaks": [_record(leak) for leak in leaks.found],
    }


def _record(leak: "Leak") -> dict[str, Any]:
    source = leak.source
    return {
        "kind": leak.kind,
        "id": leak.id,
        "text": leak.text,
        "source_id": source.id,
        "source_text": source.text,
        "score": round(source.score, 6) if leak.kind == "near" else None,
        "rarity": source.rarity,
    }


def _print_leak(leak: "Leak", columns: Mapping[str, Any]) -> None:
    """Print a row, and below it the row that it repeats if their texts differ."""
    figures = ""
    if leak.kind == "near":
        figures = f"  {score_text(leak.source.score)}{rarity_text(leak.source.rarity)}"
    ids = f"{one_line(str(leak.id))} {_SIGNS[leak.kind]} {one_line(str(leak.source.id))}"
    label = f"{leak.kind:<10}{figures}  {ids}  "
    texts = [leak.text or ""]
    if leak.kind != "exact":
        texts.append(leak.source.text or "")
    for number, text in enumerate(texts):
        is_last = number == len(texts) - 1
        begin = " " * len(label) if number else label
        print_hit(begin, one_line(text), columns if is_last else {})


def _print_counts(leaks: "Leaks") -> None:
    """Print how many rows occur in the other set, by kind."""
    if leaks.found:
        console.result("")
    rows = []
    for kind, count in leaks.counts.items():
        rows.append([kind, f"{count:,}", _percent(count, leaks.rows), _MEANS[kind]])
    rows.append(["all", f"{len(leaks.found):,}", _percent(len(leaks.found), leaks.rows), ""])
    console.show(Grid(["kind", "rows", "share", ""], rows))


def _percent(count: int, rows: int) -> str:
    return f"{100 * count / rows:.2f}%" if rows else "-"
