"""Rows of one set that also occur in another, as lines that fit the terminal, CSV or JSON."""

from typing import Any

from promptcli.cli import console
from promptcli.cli.hits import HitPrinter, one_line, score_text
from promptcli.errors import CheckFailedError, counted
from promptcli.retrieval.pairs import Leak, Leaks

#: Kind -> how a row of the one set relates to a row of the other.
_MEANS = {
    "exact": "the same text",
    "normalised": "the same but for case, spaces and forms of characters",
    "near": "near by cosine",
}


def show_leaks(
    leaks: Leaks, names: tuple[str, str], printer: HitPrinter, *, check: bool = False
) -> None:
    """Print the rows of a set that also occur in another, and their number; with ``check`` fail if
    there are any. ``names`` are those of the set and of the other one.
    """
    if printer.format == "json":
        document = {
            "rows": leaks.rows,
            "source_rows": leaks.source_rows,
            "found": len(leaks.found),
            "share": round(leaks.share, 6),
            "kinds": leaks.counts,
            "threshold": leaks.threshold,
            "leaks": [_record(leak) for leak in leaks.found],
        }
        console.result_json(document)
    else:
        for leak in leaks.found:
            columns = printer.columns(leak.source.columns)
            printer.hit(_record(leak), columns, *_lines(leak))
    if printer.format == "table":
        rows = []
        for kind, count in [*leaks.counts.items(), ("all", len(leaks.found))]:
            share = f"{100 * count / leaks.rows:.2f}%" if leaks.rows else "-"
            rows.append((kind, f"{count:,}", share, _MEANS.get(kind, "")))
        console.result_table(("kind", "rows", "share", ""), rows)
    verb = "occur in, or are near a row of," if leaks.counts["near"] else "occur in"
    summary = (
        f"{len(leaks.found):,} of {counted(leaks.rows, 'row')} of {names[0]} (left)"
        f" {verb} the {leaks.source_rows:,} of {names[1]} (right)"
    )
    if check and leaks.found:
        raise CheckFailedError(summary)
    if printer.format == "table":
        console.note(summary)


def _record(leak: Leak) -> dict[str, Any]:
    return {
        "kind": leak.kind,
        "id": leak.id,
        "text": leak.text,
        "source_id": leak.source.id,
        "source_text": leak.source.text,
        "score": round(leak.source.score, 6) if leak.kind == "near" else None,
    }


def _lines(leak: Leak) -> list[tuple[str, str]]:
    """Return a row, and below it the row that it repeats if their texts differ."""
    score = f"  {score_text(leak.source.score)}" if leak.kind == "near" else ""
    sign = "~" if leak.kind == "near" else "="
    ids = f"{one_line(str(leak.id))} {sign} {one_line(str(leak.source.id))}"
    label = f"{leak.kind:<10}{score}  {ids}  "
    lines = [(label, leak.text or "")]
    if leak.kind != "exact":
        lines.append((" " * len(label), leak.source.text or ""))
    return lines
