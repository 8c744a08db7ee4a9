"""Results as a table in the terminal, Markdown, LaTeX, CSV or JSON; printed, or in a file."""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from promptcli.cli.console import result_document, result_json, result_styled, show
from promptcli.cli.grids import Grid
from promptcli.errors import UsageError, look_up
from promptcli.settings import setting
from promptcli.storage.files import check_output, write_text

#: What is shown one below the other: lines, tables, and coloured lines for the terminal only.
Part = str | Grid | list[Text]

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
    """A result in the three shapes that the formats are made from."""

    document: Mapping[str, Any]  #: what ``--json`` prints
    parts: Sequence[Part]  #: what a person reads
    records: Sequence[Mapping[str, Any]]  #: rows of a CSV, all with the same columns


@dataclass(frozen=True)
class FormatOptions:
    """How results are printed."""

    format: str | None = setting(
        None, "How the result is printed: table (default), markdown, latex, csv or json."
    )
    no_intervals: bool = setting(False, "Leave 95% intervals out of table, markdown and latex.")

    @property
    def intervals(self) -> bool:
        """Whether intervals are printed."""
        return not self.no_intervals

    def name(self, *, json: bool) -> str:
        """Return the format that is asked for, by ``--format`` or ``--json``."""
        if self.format is not None:
            look_up("format", self.format, PRINTERS)
        if json and self.format not in (None, "json"):
            raise UsageError(f"--json and --format {self.format} exclude each other; give one")
        if json:
            return "json"
        return self.format or "table"

    def lines_or_json(self, what: str, *, json: bool) -> bool:
        """Return whether ``what`` is printed as JSON; refuse formats that are of results only."""
        name = self.name(json=json)
        if name not in ("table", "json"):
            raise UsageError(f"{what} has no format {name!r}; it is printed as lines, or by --json")
        return name == "json"


def print_report(report: Report, format: str) -> None:
    """Print a result in a format of ``PRINTERS``."""
    PRINTERS[format](report)


def _print_table(report: Report) -> None:
    for part in report.parts:
        if isinstance(part, list):
            for line in part:
                result_styled(line)
        else:
            show(part)


def _print_json(report: Report) -> None:
    result_json(report.document)


def _json(report: Report) -> str:
    return json.dumps(report.document, ensure_ascii=False, indent=1) + "\n"


def _csv(report: Report) -> str:
    text = io.StringIO()
    heads = list(report.records[0]) if report.records else []
    writer = csv.DictWriter(text, heads, lineterminator="\n")
    writer.writeheader()
    writer.writerows(report.records)
    return text.getvalue()


def _markdown(report: Report) -> str:
    blocks = []
    for part in report.parts:
        if isinstance(part, Grid):
            blocks.append(_markdown_table(part))
        elif isinstance(part, str) and part.strip():
            blocks.append(part.strip())
    return "\n\n".join(blocks) + "\n"


def _markdown_table(grid: Grid) -> str:
    rules = ["---:" if numeric else "---" for numeric in grid.numeric_columns()]
    lines = [_markdown_line(cells) for cells in (grid.heads, rules, *grid.rows)]
    return "\n".join(lines)


def _markdown_line(cells: Sequence[str]) -> str:
    escaped = [" ".join(cell.split()).replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _latex(report: Report) -> str:
    """Return a tabular for each table; the lines around it are comments."""
    blocks = ["% \\usepackage{booktabs}"]
    for part in report.parts:
        if isinstance(part, Grid):
            blocks.append(_latex_table(part))
        elif isinstance(part, str):
            blocks += [f"% {line}" for line in part.splitlines() if line]
    return "\n".join(blocks) + "\n"


def _latex_table(grid: Grid) -> str:
    """Return a tabular in the style of booktabs, the best scores in bold."""
    alignment = "".join("r" if numeric else "l" for numeric in grid.numeric_columns())
    lines = [f"\\begin{{tabular}}{{{alignment}}}", r"\toprule"]
    lines.append(_latex_line([latex_text(head) for head in grid.heads]))
    lines.append(r"\midrule")
    for number, row in enumerate(grid.rows):
        cells = [latex_text(cell) for cell in row]
        for column in range(len(cells)):
            if (number, column) in grid.best:
                cells[column] = f"\\textbf{{{cells[column]}}}"
        lines.append(_latex_line(cells))
    lines += [r"\bottomrule", r"\end{tabular}", ""]
    return "\n".join(lines)


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def latex_text(text: str) -> str:
    r"""Return a text as LaTeX prints it, on one line; the minus of a number is a minus.

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


#: By the names that ``--format`` takes: prints a result.
PRINTERS: dict[str, Callable[[Report], None]] = {
    "table": _print_table,
    "markdown": lambda report: result_document(_markdown(report).rstrip("\n")),
    "latex": lambda report: result_document(_latex(report).rstrip("\n")),
    "csv": lambda report: result_document(_csv(report).rstrip("\n")),
    "json": _print_json,
}

#: Extension of a file of results -> its text.
WRITERS: dict[str, Callable[[Report], str]] = {
    ".json": _json,
    ".csv": _csv,
    ".md": _markdown,
    ".tex": _latex,
}


def check_results_file(path: Path, *, force: bool) -> None:
    """Refuse a name of no known format, and a file that exists unless it may be replaced."""
    if path.suffix.lower() not in WRITERS:
        known = ", ".join(WRITERS)
        raise UsageError(
            f"--output {str(path)!r}: a file of results ends in {known}; mteb's folder is"
            " --mteb-folder"
        )
    check_output(path, force=force, parameter="output")


def write_results(path: Path, report: Report) -> None:
    """Write a result in the format of the file's extension."""
    write_text(path, WRITERS[path.suffix.lower()](report))
