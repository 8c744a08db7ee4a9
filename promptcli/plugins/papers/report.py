"""A result document as a table with remarks, printed or on a page, and its files."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from promptcli.cli.console import Grid
from promptcli.cli.result_files import Report, TablesAndLines, best_cells, text_of
from promptcli.errors import NotFoundError
from promptcli.plugins.papers.contexts import EXAMPLES, backbone_stem
from promptcli.plugins.papers.documents import published_value
from promptcli.plugins.papers.measures import COLUMNS
from promptcli.plugins.papers.published import published_tables
from promptcli.settings import typed_value
from promptcli.storage import files

Document = Mapping[str, Any]  #: of a table, or a part of it: a row, the published values


class TableLine(NamedTuple):
    """One line of a table."""

    kind: str  #: ``measured`` or ``missing``; ``interval``, ``published``, ``difference`` below it
    label: str
    cells: list[str]  #: one per column


def column_headers(document: Document) -> list[str]:
    """Return the column headers; an average names its number of tasks."""
    names = []
    for name in document["columns"]:
        tasks = _count_of_tasks(document, name)
        of_tasks = f" ({tasks} of {len(COLUMNS[name].mean_of)})" if tasks else ""
        names.append(COLUMNS[name].header + of_tasks)
    return names


def _count_of_tasks(document: Document, column: str) -> int:
    """Return the number of tasks of a measured average, 0 if the column has none."""
    if not COLUMNS[column].mean_of:
        return 0
    cells = [row["figures"].get(column) for row in document["rows"]]
    return max((len(cell["on"]) for cell in cells if cell), default=0)


def records(document: Document) -> list[dict[str, Any]]:
    """Return one row per value of the table, for CSV."""
    backbone = document["backbone"]
    rows = []
    for row in document["rows"]:
        printed = row["published"]
        for name in document["columns"]:
            cell = row["figures"].get(name, {})
            value = published_value(printed, name)
            all_tasks = len(COLUMNS[name].mean_of)
            published_tasks = all_tasks if value is not None else 0
            if published_tasks and "average_of_same_tasks" in printed:
                published_tasks = _count_of_tasks(document, name)
            low, high = cell.get("ci95") or ("", "")
            rows.append(
                {
                    "table": document["table"],
                    "backbone": backbone["name"] if backbone else "",
                    "method": row["method"],
                    "setting": row["setting"],
                    "column": COLUMNS[name].header,
                    "measured": _plain(cell.get("value")),
                    "tasks": len(cell.get("on", ())) if all_tasks and cell else "",
                    "ci95_low": low,
                    "ci95_high": high,
                    "std": cell.get("std", ""),
                    "published": _plain(value),
                    "published_tasks": published_tasks or "",
                    "published_std": printed["std"].get(name, ""),
                    "published_backbone": printed["backbone"],
                    "difference": row["difference"].get(name, ""),
                    "not_measured": row["not_measured"].get(name, ""),
                }
            )
    return rows


def _plain(value: Any) -> Any:
    """Return a value as a cell of a CSV; a list of tokens is one text."""
    if value is None:
        return ""
    return ", ".join(value) if isinstance(value, list) else value


def row_lines(row: Document, columns: Sequence[str]) -> Iterator[TableLine]:
    """Yield the lines of one row: the measured values, their intervals or standard deviations, then
    the published values and the difference.
    """
    cells = {column: row["figures"][column] for column in columns if column in row["figures"]}
    if cells:
        measured = {column: cell["value"] for column, cell in cells.items()}
        texts = [text or "-" for text in _texts(columns, measured)]
        yield TableLine("measured", _label(row), texts)
        label = f"recipe {row['recipe_id']}" if row["recipe_id"] else "±"
        spreads = {}
        for column, cell in cells.items():
            if "std" in cell:
                label = f"recipe {row['recipe_id']}, std"
                spreads[column] = cell["std"]
            elif cell["ci95"]:
                low, high = cell["ci95"]
                spreads[column] = (high - low) / 2
        if spreads:
            texts = [text and f"±{text}" for text in _texts(columns, spreads)]
            yield TableLine("interval", label, texts)
    else:
        yield TableLine("missing", _label(row), ["-"] * len(columns))
    yield from _published(row["published"], columns)
    if row["difference"]:
        yield TableLine("difference", "difference", _texts(columns, row["difference"], "+"))


def _label(row: Document) -> str:
    """Return a row's method, its setting, and its local head or text."""
    label = str(row["method"])
    if row["setting"] != "learning-free":
        label += f" ({row['setting']})"
    if not row["figures"]:
        return label
    if row["head"] is not None:
        label += f", head {row['head']}"
    if row["fitted_on"] is not None:
        label += f", {'trained' if _is_trained(row) else 'fitted'} on {row['fitted_on']}"
    return label


def _published(published: Document, columns: Sequence[str]) -> Iterator[TableLine]:
    """Yield the line of the published values, if there are any."""
    if not published["figures"]:
        return
    cells = _texts(columns, {column: published_value(published, column) for column in columns})
    others = published.get("other_tasks", {})
    for place, column in enumerate(columns):
        if column in others:
            cells[place] += f" (of {others[column]})"
    whose = "" if published["own"] else f" for {published['backbone'].split('/')[-1]}"
    yield TableLine("published", f"published{whose}", cells)


def _texts(columns: Sequence[str], values: Document, sign: str = "") -> list[str]:
    """Return the values of columns in their formats; a missing value is empty.

    ``sign`` is the sign of a format specification.
    """
    texts = []
    for column in columns:
        value = values.get(column)
        decimals = COLUMNS[column].decimals
        if isinstance(value, bool | str | list | None):
            texts.append(str(_plain(value)))
        elif decimals is not None:
            texts.append(f"{value:{sign}.{decimals}f}")
        else:
            texts.append(f"{value:{sign}g}" if isinstance(value, float) else str(value))
    return texts


def remarks(document: Document) -> list[str]:
    """Return why rows and columns are missing, and the notes on published rows; the caption names
    missing data.
    """
    columns = document["columns"]
    missing_rows = []
    missing_columns: dict[str, None] = {}
    for row in document["rows"]:
        why = row["not_measured"]
        if any(column in row["figures"] for column in columns):
            missing_columns |= dict.fromkeys(why[column] for column in columns if column in why)
        else:
            reasons = dict.fromkeys(why.get(column, "not measured") for column in columns)
            missing_rows.append((_label(row), f"not measured: {'; '.join(reasons)}"))
    notes = [
        (f"{row['method']} on {row['published']['backbone']}", row["note"])
        for row in document["rows"]
        if row["note"]
    ]
    of_columns = [reason for reason in missing_columns if not reason.startswith("no data")]
    return [*_by_text(missing_rows), *of_columns, *_by_text(notes)]


def _by_text(remarks: Iterable[tuple[str, str]]) -> list[str]:
    """Return remarks on methods, each text once: ``METHOD, METHOD: TEXT``."""
    methods_of: dict[str, dict[str, None]] = {}
    for method, text in remarks:
        methods_of.setdefault(text, {})[method] = None
    return [f"{', '.join(methods)}: {text}" for text, methods in methods_of.items()]


def table_of(document: Document, *, intervals: bool = True) -> Grid:
    """Return all lines of a table, under the column headers."""
    cells: list[list[str]] = []
    measured = []
    for row in document["rows"]:
        for line in row_lines(row, document["columns"]):
            if line.kind == "measured":
                measured.append(len(cells))
            indent = "" if line.kind in ("measured", "missing") else "  "
            if intervals or line.kind != "interval":
                cells.append([f"{indent}{line.label}", *line.cells])
    columns = enumerate(document["columns"], 1)
    scores = [number for number, name in columns if COLUMNS[name].is_score]
    return Grid(["", *column_headers(document)], cells, best_cells(cells, scores, measured))


def caption(document: Document) -> list[str]:
    """Return the lines about backbone, weights, protocol, seeds and data."""
    lines: list[str] = []
    if document["backbone"] is not None:
        lines += _about_backbone(document["backbone"])
    rows = document["rows"]
    if any(cell["ci95"] for row in rows for cell in row["figures"].values()):
        lines.append(
            f"protocol {document['protocol']}; ± half of the 95% bootstrap interval"
            f" ({document['resamples']:,} resamples, seed {document['seeds']['bootstrap']})"
        )
    data = document["data"]
    lines += dict.fromkeys(facts["setting"] for facts in data.values() if "setting" in facts)
    if data:
        hashes = [f"{name} {facts['sha256'][:8]}" for name, facts in data.items()]
        lines.append(f"data {', '.join(hashes)}")
    if document["missing"]:
        lines.append(f"no data: {', '.join(document['missing'])}")
    for name, facts in data.items():
        pairs = facts.get("pairs")
        expected = facts.get("expected_pairs")
        if pairs != expected:
            lines.append(f"not comparable: {name} has {pairs} pairs, not {expected}")
    lines += _about_texts(document)
    counts = {name: _count_of_tasks(document, name) for name in document["columns"]}
    if any(0 < count < len(COLUMNS[name].mean_of) for name, count in counts.items()):
        lines.append("Avg: mean of the available tasks")
        lines.append(
            "published Avg: mean of the same tasks where the paper gives them, otherwise of all"
            " seven, marked (of 7)"
        )
    published = [row["published"] for row in rows if row["figures"]]
    if any(printed["figures"] and not printed["own"] for printed in published):
        lines.append("published figures are for other backbones, so no difference is shown")
    return lines


def _about_backbone(backbone: Document) -> list[str]:
    weights = backbone["weights_sha256"][:12]
    named = backbone["name"]
    published = backbone["published"]
    if backbone_stem(backbone) != named:
        named += f" ({backbone['id']})"
        if published is not None:
            named += f", which is {published}"
    lines = [f"backbone {named}, weights {weights}, {backbone['dtype']}"]
    if published == "mini-bert":
        lines.append(
            "mini-bert saw templates in pre-training: its figures are not evidence for the papers'"
            " claims about plain BERT"
        )
    return lines


def _about_texts(document: Document) -> Iterator[str]:
    """Yield the texts for measuring, fitting and training rows, and the seeds of training."""
    trained = [row for row in document["rows"] if row["figures"] and _is_trained(row)]
    for kind in EXAMPLES:
        facts = document.get(kind)
        if facts is not None:
            unit = "sentences" if "sentences" in facts else "examples"
            yield f"{kind} {facts['name']}, {facts[unit]:,} {unit}, {facts['sha256'][:8]}"
    seeds = document["seeds"].get("training")
    if seeds is not None:
        listed = ", ".join(map(str, seeds))
        runs = f"one run each, seed {listed}"
        if len(seeds) > 1:
            runs = f"{len(seeds)} runs each, seeds {listed}, mean ± std"
        yield f"trained rows: {runs}; the notes say what the papers' are"
    yield from _about_settings(trained)


def _is_trained(row: Document) -> bool:
    return str(row["run"]).startswith("trained:")


def _about_settings(trained: Sequence[Document]) -> Iterator[str]:
    """Yield the differences of trained rows' settings from the papers'; JSON has all settings."""
    yield from _by_text(
        (
            f"{_label(row).partition(',')[0]} as on {row['published']['backbone']}",
            _difference(row["training"]["differs"]),
        )
        for row in trained
    )


def _difference(differs: Mapping[str, Sequence[Any]] | None) -> str:
    if differs is None:
        return "the paper's settings are not known here"
    if not differs:
        return "trained with the paper's settings"
    told = []
    for name, (ours, theirs) in differs.items():
        told.append(f"{name.replace('_', ' ')} {typed_value(ours)} ({typed_value(theirs)})")
    return f"differs from the paper: {', '.join(told)}"


def printed_parts(document: Document, *, intervals: bool) -> TablesAndLines:
    """Return one result document for a terminal: a caption, the table and remarks."""
    return [
        f"{document['table']}: {document['title']}",
        *caption(document),
        table_of(document, intervals=intervals),
        *remarks(document),
    ]


def page_parts(document: Document, *, level: int = 1, folder: str = "") -> TablesAndLines:
    """Return one result document as a part of a page.

    ``folder`` is the pictures' folder relative to the page, with a final slash.
    """
    heading = f"{'#' * level} {document['table']}, {document['backbone']['name']}"
    pictures = [
        row["figures"]["picture"] for row in document["rows"] if "picture" in row["figures"]
    ]
    title = document["title"]
    return [
        f"{heading}: {title}",
        _listed(caption(document)),
        table_of(document),
        *(f"![{title}]({folder}{picture['value']})" for picture in pictures),
        _listed(remarks(document)),
    ]


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


_PAGE = """\
# Results

The tables and figures of the papers that were measured here, on {}. The published figure is below
each measured one; if it is for another backbone, that is named and no difference is shown. Figures\
 are Spearman x 100
unless the column says otherwise. `promptcli reproduce page` writes this page from the files in\
 `results/`.
"""


def results_page(documents: Sequence[Document], folder: str = "../results/") -> str:
    """Return the page of all results.

    ``folder`` is the results' folder relative to the page.
    """
    names = dict.fromkeys(f"`{document['backbone']['name']}`" for document in documents)
    parts: TablesAndLines = [_PAGE.format(", ".join(names))]
    for document in documents:
        parts += page_parts(document, level=2, folder=folder)
    return _markdown(parts)


def _markdown(parts: TablesAndLines) -> str:
    return text_of(Report({}, parts, []), "markdown")


# Files


def write_result(folder: Path, document: Document) -> Path:
    """Write a result document as JSON, and as Markdown next to it; return the JSON's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_stem(document)}.json"
    files.write_text(path, json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    files.write_text(path.with_suffix(".md"), _markdown(page_parts(document)))
    return path


def file_stem(document: Document) -> str:
    """Return a result file's name without extension: ``promptbert-5.mini``."""
    table = str(document["table"]).replace("/", "-")
    return f"{table}.{backbone_stem(document['backbone'])}"


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return all result documents of a folder, in the papers' order, then by backbone."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    if not documents:
        raise NotFoundError(
            f"no result in {str(folder)!r}; `promptcli reproduce all` makes them",
            parameter="output",
        )
    order = list(published_tables())

    def place(document: Document) -> tuple[int, str]:
        return order.index(document["table"]), file_stem(document)

    return sorted(documents, key=place)


def write_page(folder: Path, page: Path) -> int:
    """Write the page of all results of a folder; return their number."""
    documents = read_results(folder)
    page.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(page, results_page(documents, f"{os.path.relpath(folder, page.parent)}/"))
    return len(documents)
