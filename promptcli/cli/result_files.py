"""Results of ``eval`` as a file: JSON, CSV, Markdown or LaTeX, by its name."""

import csv
import io
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
    """Return a line for each figure, without the comparisons."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_FIELDS, "ci95_low", "ci95_high", "n", "fingerprint"])
    for score in document["results"]:
        low, high = score["ci95"] or ("", "")
        cells = [score.get(name, "") for name in _FIELDS]
        writer.writerow([*cells, low, high, _count(score), score["fingerprint"]])
    return text.getvalue()


def _count(score: Mapping[str, Any]) -> int | str:
    """Return of how many pairs, queries or test examples a figure is, if it is of any."""
    if "examples" in score:
        *_, tested = score["examples"].values()  # the last split is the one that is tested on
        return int(tested)
    return next((score[name] for name in ("pairs", "queries") if name in score), "")


def _markdown(document: Mapping[str, Any], tables: Sequence[Table]) -> str:
    parts = []
    for part in _parts(tables):
        if isinstance(part, str):
            parts.append(part)
            continue
        aligned = ["---", *["---:"] * (len(part.heads) - 1)]
        lines = [list(part.heads), aligned, *map(list, part.rows)]
        parts.append(
            "\n".join(
                "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                for line in lines
            )
        )
    return "\n\n".join(parts) + "\n"


def _latex(document: Mapping[str, Any], tables: Sequence[Table]) -> str:
    """Return a tabular for each table, without packages; the lines around it are comments."""
    parts = []
    for part in _parts(tables):
        if isinstance(part, str):
            parts.append(f"% {part}")
            continue
        parts.append(f"\\begin{{tabular}}{{l{'r' * (len(part.heads) - 1)}}}\n\\hline")
        parts.append(_latex_line(part.heads) + "\n\\hline")
        parts += map(_latex_line, part.rows)
        parts.append("\\hline\n\\end{tabular}\n")
    return "\n".join(parts)


def _latex_line(cells: Sequence[str]) -> str:
    escaped = [
        _SPECIAL.sub(lambda sign: _ESCAPED.get(sign[0], f"\\{sign[0]}"), cell) for cell in cells
    ]
    return " & ".join(cell.replace("±", r"$\pm$").replace("<", "$<$") for cell in escaped) + r" \\"


def _parts(tables: Sequence[Table]) -> list[str | Grid]:
    return [part for table in tables for part in table]


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
