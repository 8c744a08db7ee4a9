"""Results of ``eval`` as a file: JSON, CSV, Markdown or LaTeX, by its name."""

import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from promptcli.cli.grids import Grid
from promptcli.errors import UsageError
from promptcli.storage.files import check_output, write_text

Table = Sequence[str | Grid]  #: lines and a grid, one below the other

#: Fields of a score that are columns of a CSV; the interval's two ends follow.
_FIELDS = ("model", "recipe", "task", "split", "metric", "value")
_SPECIAL = re.compile(r"[&%$#_{}~^\\]")
_ESCAPED = {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}


def _json(document: Mapping[str, Any], tables: Sequence[Table]) -> str:
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _csv(document: Mapping[str, Any], tables: Sequence[Table]) -> str:
    """Return a line for each score, without the comparisons."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_FIELDS, "ci95_low", "ci95_high", "n", "fingerprint"])
    for score in document["results"]:
        low, high = score["ci95"] or ("", "")
        cells = [score.get(name, "") for name in _FIELDS]
        writer.writerow([*cells, low, high, _count(score), score["fingerprint"]])
    return text.getvalue()


def _count(score: Mapping[str, Any]) -> int | str:
    """Return the number of pairs, queries or test examples of a score, if it has one."""
    if "examples" in score:
        sizes = list(score["examples"].values())
        return int(sizes[-1])  # the last split is the one that is tested on
    for name in ("pairs", "queries"):
        if name in score:
            return int(score[name])
    return ""


def _markdown(document: Mapping[str, Any], tables: Sequence[Table]) -> str:
    parts = []
    for part in itertools.chain(*tables):
        if isinstance(part, str):
            parts.append(part)
            continue
        alignment = ["---"] + ["---:"] * (len(part.heads) - 1)
        lines = [_markdown_line(cells) for cells in (part.heads, alignment, *part.rows)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _markdown_line(cells: Sequence[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _latex(document: Mapping[str, Any], tables: Sequence[Table]) -> str:
    """Return a tabular for each table, without packages; the lines around it are comments."""
    parts = []
    for part in itertools.chain(*tables):
        if isinstance(part, str):
            parts.append(f"% {part}")
            continue
        alignment = "l" + "r" * (len(part.heads) - 1)
        parts.append(f"\\begin{{tabular}}{{{alignment}}}\n\\hline")
        parts.append(_latex_line(part.heads) + "\n\\hline")
        parts += map(_latex_line, part.rows)
        parts.append("\\hline\n\\end{tabular}\n")
    return "\n".join(parts)


def _latex_line(cells: Sequence[str]) -> str:
    return " & ".join(map(_latex_text, cells)) + r" \\"


def _latex_text(cell: str) -> str:
    escaped = _SPECIAL.sub(lambda sign: _ESCAPED.get(sign[0], f"\\{sign[0]}"), cell)
    return escaped.replace("±", r"$\pm$").replace("<", "$<$")


#: Extension of a file -> its text, from the document that ``--json`` prints and the tables.
FORMATS: dict[str, Callable[[Mapping[str, Any], Sequence[Table]], str]] = {
    ".json": _json,
    ".csv": _csv,
    ".md": _markdown,
    ".tex": _latex,
}


def check_format(path: Path, *, force: bool) -> None:
    """Refuse a name of no known format, and a file that exists unless it may be replaced."""
    if path.suffix.lower() not in FORMATS:
        known = ", ".join(FORMATS)
        raise UsageError(
            f"--output {str(path)!r}: a file of results ends in {known}; mteb's folder is"
            " --mteb-folder"
        )
    check_output(path, force=force, option="--output")


def write_results(path: Path, document: Mapping[str, Any], tables: Sequence[Table]) -> None:
    """Write results in the format of the file's extension."""
    write_text(path, FORMATS[path.suffix.lower()](document, tables))
