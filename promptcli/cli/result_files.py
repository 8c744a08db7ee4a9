"""Results as a terminal table, Markdown, LaTeX, CSV or JSON; printed or written to a file."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from promptcli.cli.console import Grid, result_document, result_json, show
from promptcli.errors import UsageError
from promptcli.storage.files import check_output, write_text

Part = str | Grid  #: the parts, one below another

_SPECIAL = re.compile(r"[&%$#_{}~^\\<>|±]")
#: Signs of LaTeX that need more than a backslash.
_LATEX = {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
}


@dataclass(frozen=True)
class Report:
    """A result in the three forms that the formats are rendered from."""

    document: Mapping[str, Any]  #: what ``--json`` prints
    parts: Sequence[Part]  #: the parts for a reader
    records: Sequence[Mapping[str, Any]]  #: rows of a CSV


Format = Annotated[
    Literal["table", "markdown", "latex", "csv", "json"] | None,
    typer.Option(help="Output format. Default: table."),
]
NoIntervals = Annotated[
    bool,
    typer.Option("--no-intervals", help="Leave 95% intervals out of table, markdown and latex."),
]


def _json(report: Report) -> str:
    return json.dumps(report.document, ensure_ascii=False, indent=1) + "\n"


def _csv(report: Report) -> str:
    text = io.StringIO()
    heads = list(dict.fromkeys(name for record in report.records for name in record))
    writer = csv.DictWriter(text, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(report.records)
    return text.getvalue()


def _markdown(report: Report) -> str:
    blocks = []
    for part in report.parts:
        if isinstance(part, str):
            blocks.append(part.strip())
            continue
        rules = ["---:" if numeric else "---" for numeric in part.numeric_columns()]
        lines = []
        for cells in (part.headers, rules, *part.rows):
            escaped = [" ".join(cell.split()).replace("|", "\\|") for cell in cells]
            lines.append(f"| {' | '.join(escaped)} |")
        blocks.append("\n".join(lines))
    return "\n\n".join(filter(None, blocks)) + "\n"


def _latex(report: Report) -> str:
    """Return a booktabs tabular for each table, best scores in bold; the lines around it are
    comments.
    """
    lines = ["% \\usepackage{booktabs}"]
    for part in report.parts:
        if isinstance(part, str):
            lines += [f"% {line}" for line in part.splitlines() if line]
            continue
        alignment = "".join("r" if numeric else "l" for numeric in part.numeric_columns())
        lines += [f"\\begin{{tabular}}{{{alignment}}}", r"\toprule"]
        lines += [" & ".join(map(latex_text, part.headers)) + r" \\", r"\midrule"]
        for number, row in enumerate(part.rows):
            cells = [latex_text(cell) for cell in row]
            for column, cell in enumerate(cells):
                if (number, column) in part.best:
                    cells[column] = f"\\textbf{{{cell}}}"
            lines.append(" & ".join(cells) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines) + "\n"


def latex_text(text: str) -> str:
    r"""Return a text escaped for LaTeX, on one line; a number keeps its minus sign.

    A text that begins with a space is indented.

    Example:
        >>> print(latex_text("100% of [X]: -0.5"))
        100\% of [X]: $-$0.5
    """
    one_line = " ".join(text.split())
    indent = r"\quad " if text.startswith(" ") else ""
    escaped = _SPECIAL.sub(lambda sign: _LATEX.get(sign[0], f"\\{sign[0]}"), one_line)
    if escaped.startswith(("[", "*")):
        # at the beginning of a row it would be read as an argument of the end of the row before it
        escaped = f"{{{escaped[0]}}}{escaped[1:]}"
    return indent + re.sub(r"(?<!\S)-(?=\d)", "$-$", escaped)


#: By the names that ``--format`` takes: the text of a result, but of a table.
_WRITERS: dict[str, Callable[[Report], str]] = {
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
    "json": _json,
}
#: Extension of a file of results -> its format.
ENDINGS = {".json": "json", ".csv": "csv", ".md": "markdown", ".tex": "latex"}


def print_report(report: Report, format: str) -> None:
    """Print a result in one of the formats."""
    if format == "table":
        show(*report.parts)
    elif format == "json":
        result_json(report.document)
    else:
        result_document(text_of(report, format).rstrip("\n"))


def text_of(report: Report, format: str) -> str:
    """Return the text of a file of results."""
    return _WRITERS[format](report)


def check_results_file(path: Path, *, force: bool) -> None:
    """Refuse an unknown extension, and an existing file unless it may be replaced."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(
            f"{str(path)!r}: a file of results ends in {', '.join(ENDINGS)}", parameter="output"
        )
    check_output(path, force=force)


def write_results(path: Path, report: Report) -> None:
    """Write a result in the format of the file's extension."""
    write_text(path, text_of(report, ENDINGS[path.suffix.lower()]))


#: The text of a score in a cell; an interval or a dash does not match.
_SCORE = re.compile(r"-?\d+(\.\d+)?")


def best_cells(
    rows: Sequence[Sequence[str]], columns: Iterable[int], among: Iterable[int]
) -> set[tuple[int, int]]:
    """Return the best scores of each column among some rows; none in a column with a single score.

    Scores that print alike are all best.
    """
    best: set[tuple[int, int]] = set()
    compared = list(among)
    for column in columns:
        scores = {}
        for number in compared:
            if _SCORE.fullmatch(rows[number][column]):
                scores[number] = float(rows[number][column])
        if len(scores) > 1:
            greatest = max(scores.values())
            best |= {(number, column) for number, score in scores.items() if score == greatest}
    return best
