"""Results as a terminal table, Markdown, LaTeX, CSV or JSON, printed or written to a file."""

import csv
import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from promptcli.cli.console import Grid, print_document, print_json, show
from promptcli.errors import UsageError
from promptcli.storage.files import check_output, write_text

#: Tables and lines of text, one below another.
TablesAndLines = list[str | Grid]

_SPECIAL = re.compile(r"[&%$#_{}~^\\<>|±]")
#: Signs that LaTeX does not print after a backslash -> what it prints as the sign.
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
    """A result in the three forms from which the formats are written."""

    document: Mapping[str, Any]  #: what ``--json`` prints
    tables_and_lines: TablesAndLines  #: for the terminal, Markdown and LaTeX
    records: Sequence[Mapping[str, Any]]  #: rows of the CSV


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
    headers = list(dict.fromkeys(name for record in report.records for name in record))
    writer = csv.DictWriter(text, headers, lineterminator="\n")
    writer.writeheader()
    writer.writerows(report.records)
    return text.getvalue()


def _markdown(report: Report) -> str:
    paragraphs = []
    for item in report.tables_and_lines:
        if isinstance(item, str):
            paragraphs.append(item.strip())
            continue
        rules = ["---:" if is_numeric else "---" for is_numeric in item.numeric_columns()]
        lines = []
        for cells in (item.headers, rules, *item.rows):
            escaped = [" ".join(cell.split()).replace("|", "\\|") for cell in cells]
            lines.append(f"| {' | '.join(escaped)} |")
        paragraphs.append("\n".join(lines))
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def _latex(report: Report) -> str:
    """Return a booktabs tabular for each table, with the best scores in bold.

    Lines of text become comments.
    """
    lines = ["% \\usepackage{booktabs}"]
    for item in report.tables_and_lines:
        if isinstance(item, str):
            lines += [f"% {line}" for line in item.splitlines() if line]
            continue
        alignment = "".join("r" if is_numeric else "l" for is_numeric in item.numeric_columns())
        lines += [f"\\begin{{tabular}}{{{alignment}}}", r"\toprule"]
        lines += [" & ".join(map(latex_text, item.headers)) + r" \\", r"\midrule"]
        for number, row in enumerate(item.rows):
            cells = list(map(latex_text, row))
            for column, cell in enumerate(cells):
                if (number, column) in item.best:
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
        # at the beginning of a row, LaTeX would read it as an argument of the previous row's \\
        escaped = f"{{{escaped[0]}}}{escaped[1:]}"
    return indent + re.sub(r"(?<!\S)-(?=\d)", "$-$", escaped)


#: Value of ``--format`` -> the function that writes a report in this format.
_WRITERS: dict[str, Callable[[Report], str]] = {
    "markdown": _markdown,
    "latex": _latex,
    "csv": _csv,
    "json": _json,
}
#: Extension of a results file -> its format.
EXTENSIONS = {".json": "json", ".csv": "csv", ".md": "markdown", ".tex": "latex"}


def print_report(report: Report, format: str) -> None:
    """Print a result in one of the formats."""
    if format == "table":
        show(*report.tables_and_lines)
    elif format == "json":
        print_json(report.document)
    else:
        print_document(text_of(report, format).rstrip("\n"))


def text_of(report: Report, format: str) -> str:
    """Return a result as the text of a results file."""
    return _WRITERS[format](report)


def check_results_file(path: Path, *, force: bool) -> None:
    """Refuse an unknown extension, and an existing file unless it may be replaced."""
    if path.suffix.lower() not in EXTENSIONS:
        raise UsageError(
            f"the name of a results file ends in {', '.join(EXTENSIONS)}; got {str(path)!r}",
            parameter="output",
        )
    check_output(path, force=force)


def write_results(path: Path, report: Report) -> None:
    """Write a result in the format of the file's extension."""
    write_text(path, text_of(report, EXTENSIONS[path.suffix.lower()]))


#: A cell with a score; an interval or a dash does not match.
_SCORE = re.compile(r"-?\d+(\.\d+)?")


def best_cells(
    rows: Sequence[Sequence[str]], columns: Iterable[int], compared_rows: Collection[int]
) -> set[tuple[int, int]]:
    """Return (row, column) of the best score of each column among some rows.

    Scores that print alike are all best. A column with a single score has no best one.
    """
    best: set[tuple[int, int]] = set()
    for column in columns:
        scores = {}
        for row in compared_rows:
            if _SCORE.fullmatch(rows[row][column]):
                scores[row] = float(rows[row][column])
        if len(scores) > 1:
            greatest = max(scores.values())
            best |= {(row, column) for row, score in scores.items() if score == greatest}
    return best
