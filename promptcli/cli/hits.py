"""Hits of a search, duplicates and leaks, as lines that fit the terminal, CSV or JSON."""

import csv
import io
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from promptcli.cli import console
from promptcli.cli.options import Json, format_name
from promptcli.data.layouts import name_key
from promptcli.errors import CheckFailedError, UsageError, unknown_name_error, with_count

if TYPE_CHECKING:
    from promptcli.retrieval.pairs import Leak, Leaks
    from promptcli.retrieval.ranking import Hit

#: Line ends of other systems; their carriage return would move the cursor of a terminal.
_CARRIAGE_RETURN = re.compile("\r\n?")
#: Line and page breaks, and tabs.
_BREAKS = re.compile("[\t-\r\x85\u2028\u2029]")
_INDENT = " " * 8  # of the lines around a hit
_MAX_CHARACTERS = 1000  # of a printed text; `--json` prints all
#: Kind of a leak -> relation of a row of one set to a row of the other.
_RELATIONS = {
    "exact": "the same text",
    "normalised": "the same but for case, spaces and forms of characters",
    "near": "near by cosine",
}


class HitPrinter:
    """Prints hits in the chosen format, with the chosen columns.

    A command takes its arguments as options, see ``options.takes_options``.
    """

    def __init__(
        self,
        show: Annotated[
            str | None,
            typer.Option(help="Columns to show with each hit, e.g. year,lang; in table and csv."),
        ] = None,
        explain: Annotated[
            bool,
            typer.Option(
                "--explain",
                help="Show what each word adds to the score of a hit, and mark the words that add"
                " most.",
            ),
        ] = False,
        format: Annotated[
            Literal["table", "csv", "json"] | None,
            typer.Option(help="Output format. Default: table."),
        ] = None,
        json: Json = False,
    ) -> None:
        self.format = format_name(format, json=json)
        self.explains = explain
        if explain and self.format == "csv":
            raise UsageError("csv cannot show explanations; use table or json", parameter="format")
        # a name that holds a comma is quoted
        names = next(csv.reader([show or ""], skipinitialspace=True))
        self._columns = list(dict.fromkeys(name.strip() for name in names if name.strip()))
        self._csv_headers: list[str] = []

    def missing_columns(self, columns: Iterable[str]) -> list[str]:
        """Return the chosen columns that are not among ``columns``, whatever their case and
        spaces.
        """
        keys = set(map(name_key, columns))
        return [name for name in self._columns if name_key(name) not in keys]

    def check_columns(self, columns: Collection[str]) -> None:
        """Refuse chosen columns that are not among the ``columns`` of an index."""
        for name in self.missing_columns(columns):
            if not columns:
                raise UsageError("the index has no columns besides id and text", parameter="show")
            raise unknown_name_error("column", name, columns)

    def print_file_hit(
        self, hit: "Hit", place: tuple[int, int], lines: Sequence[str], context: int
    ) -> None:
        """Print a hit of a file, with its first and last line number and the lines around it, as
        grep does.
        """
        first, last = place
        before = tuple(lines[max(0, first - 1 - context) : first - 1])
        after = tuple(lines[last : last + context])
        heading, text = _split_heading(hit)
        document = {
            "file": hit.file,
            "line": first,
            "end_line": last,
            "score": hit.score,
            "heading": heading,
            "text": text,
            "before": before,
            "after": after,
            **hit.joined_fields(),
        }
        if columns := self._shown_columns(hit):
            document["columns"] = columns
        label = f"{hit.file}:{first}" if last == first else f"{hit.file}:{first}-{last}"
        self._print_context(hit, first - len(before), before)
        self._print(hit, document, (f"{_score_prefix(hit)}  {label}: ", _one_text(hit)))
        self._print_context(hit, last + 1, after)

    def _print_context(self, hit: "Hit", first: int, lines: Sequence[str]) -> None:
        if self.format == "table":
            for number, line in enumerate(lines, first):
                console.print_marked(f"{_INDENT}{hit.file}-{number}- ", cut_line(line))

    def print_hits(self, hits: "Sequence[Hit]", first_fields: Mapping[str, object]) -> None:
        """Print hits of an index; in JSON and CSV each begins with ``first_fields``."""
        width = max([2, *(len(cut_line(str(hit.id))) for hit in hits)])
        has_files = any(hit.file is not None for hit in hits)
        for hit in hits:
            document = {**first_fields, **hit.document()}
            if has_files:
                document["stale"] = hit.stale
            if hit.columns is not None:
                document["columns"] = hit.columns
            stale = "" if hit.stale is None else f"[file {hit.stale}] "
            name = cut_line(str(hit.id))
            label = f"{hit.rank:>4}  {_score_prefix(hit, 7)}  {name:<{width}}  {stale}"
            self._print(hit, document, (label, _one_text(hit)))

    def print_leaks(self, leaks: "Leaks", set_names: tuple[str, str], *, check: bool) -> None:
        """Print the rows of a set that also occur in another, and their number.

        With ``check``, any such row is an error. ``set_names`` are the names of the two sets.
        """
        if self.format == "json":
            document = {
                "rows": leaks.rows,
                "source_rows": leaks.source_rows,
                "found": len(leaks.found),
                "share": round(leaks.share, 6),
                "kinds": leaks.counts,
                "threshold": leaks.threshold,
                "leaks": list(map(_leak_document, leaks.found)),
            }
            console.print_json(document)
        else:
            for leak in leaks.found:
                self._print_leak(leak)
        if self.format == "table":
            rows = []
            for kind, count in [*leaks.counts.items(), ("all", len(leaks.found))]:
                share = f"{100 * count / leaks.rows:.2f}%" if leaks.rows else "-"
                rows.append((kind, f"{count:,}", share, _RELATIONS.get(kind, "")))
            console.print_table(("kind", "rows", "share", ""), rows)
        verb = "occur in, or are near a row of," if leaks.counts["near"] else "occur in"
        summary = (
            f"{len(leaks.found):,} of {with_count(leaks.rows, 'row')} of {set_names[0]} (left)"
            f" {verb} the {leaks.source_rows:,} of {set_names[1]} (right)"
        )
        if check and leaks.found:
            raise CheckFailedError(summary)
        if self.format == "table":
            console.note(summary)

    def _print_leak(self, leak: "Leak") -> None:
        """Print a row, and below it the row that it repeats if the texts differ."""
        score, sign = "", "="
        if leak.kind == "near":
            score, sign = f"  {score_text(leak.source.score)}", "~"
        ids = f"{cut_line(str(leak.id))} {sign} {cut_line(str(leak.source.id))}"
        label = f"{leak.kind:<10}{score}  {ids}  "
        lines = [(label, leak.text or "")]
        if leak.kind != "exact":
            lines.append((" " * len(label), leak.source.text or ""))
        self._print(leak.source, _leak_document(leak), *lines)

    def _shown_columns(self, hit: "Hit") -> dict[str, Any]:
        """Return the chosen columns of a hit; None for one that it lacks."""
        values = {name_key(name): value for name, value in (hit.columns or {}).items()}
        return {name: values.get(name_key(name)) for name in self._columns}

    def _print(self, hit: "Hit", document: dict[str, Any], *lines: tuple[str, str]) -> None:
        """Print a hit as JSON, as a CSV row without nested values, or as lines of a label and a
        text.

        The last line ends with the chosen columns; the words of an explanation are marked in it.
        The explanation follows.
        """
        explanation = hit.explanation or {}
        columns = self._shown_columns(hit)
        document = {
            name: round(value, 6) if isinstance(value, float) else value
            for name, value in document.items()
        }
        if self.format == "json":
            if hit.explanation is not None:
                figures = {name: ranking.figures for name, ranking in explanation.items()}
                document["explanation"] = figures
            console.print_json(document)
        elif self.format == "csv":
            self._print_csv_row(document, columns)
        else:
            cells = [f"{name}: {'' if value is None else value}" for name, value in columns.items()]
            after = f"  [{', '.join(cells)}]" if cells else ""
            *lines_above, (label, text) = lines
            for label_above, text_above in lines_above:
                console.print_marked(label_above, cut_line(text_above))
            text = cut_line(text)
            words = {word for ranking in explanation.values() for word in ranking.marked}
            console.print_marked(label, text, after, pattern=_pattern(words, text))
            for ranking in explanation.values():
                console.print_marked(_INDENT, ranking.line)

    def _print_csv_row(self, document: Mapping[str, Any], columns: Mapping[str, Any]) -> None:
        record = {
            name: value for name, value in document.items() if not isinstance(value, dict | tuple)
        }
        for name, value in columns.items():
            record[f"column {name}" if name in record else name] = value
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")  # it quotes cells of several lines
        if not self._csv_headers:
            self._csv_headers = list(record)
            writer.writerow(self._csv_headers)
        cells = [record[header] for header in self._csv_headers]
        writer.writerow(
            _CARRIAGE_RETURN.sub("\n", cell) if isinstance(cell, str) else cell for cell in cells
        )
        console.print_document(text.getvalue().removesuffix("\n"))


def _pattern(words: Collection[str], text: str) -> str:
    """Return the pattern of words in a text.

    In a script without spaces, a word also matches inside longer ones.
    """
    patterns = []
    for word in sorted(words, key=len, reverse=True):
        whole_word = rf"\b{re.escape(word)}\b"
        has_match = re.search(whole_word, text, re.I)
        patterns.append(whole_word if has_match else re.escape(word))
    return "|".join(patterns)


def _split_heading(hit: "Hit") -> tuple[str, str]:
    """Return the headings of a passage (the first line of its text) and the rest."""
    columns, text = hit.columns or {}, hit.text or ""
    if not {"heading", "end_line"} <= columns.keys():
        return "", text
    return columns["heading"], text.partition("\n")[2]


def _one_text(hit: "Hit") -> str:
    """Return the headings and the text of a hit as one text."""
    heading, text = _split_heading(hit)
    return f"{heading}: {text}" if heading else text


def _leak_document(leak: "Leak") -> dict[str, Any]:
    return {
        "kind": leak.kind,
        "id": leak.id,
        "text": leak.text,
        "source_id": leak.source.id,
        "source_text": leak.source.text,
        "score": round(leak.source.score, 6) if leak.kind == "near" else None,
    }


def cut_line(text: str) -> str:
    """Return a text on one line, cut to about a screen."""
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[:_MAX_CHARACTERS]}…"
    return _BREAKS.sub(" ", text)


def score_text(score: float) -> str:
    """Return a score with four decimals; a cosine below 1 is never rounded up to 1.0000."""
    return f"{score if round(score, 6) >= 1 else min(score, 0.9999):.4f}"


def _score_prefix(hit: "Hit", width: int = 0) -> str:
    """Return a hit's score, and the ranking that found it if there are two."""
    found_by = "" if hit.found_by is None else f"  {hit.found_by:<7}"
    return f"{score_text(hit.score):>{width}}{found_by}"


def nothing_found(query: str, min_score: float | None, where: str | None) -> str:
    """Return the reason for a search without hits: a blank query, or a condition."""
    if not query.strip():
        return "a blank query has no hits"
    if min_score is not None:
        reason = f"no row scores at least {min_score} for {query!r}"
        return reason if where is None else f"{reason} among those that meet the condition"
    return "no row meets the condition" if where is not None else f"no row matches {query!r}"
