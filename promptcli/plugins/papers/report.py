"""A result document for readers: as a table with remarks, as CSV records, as files, on a page."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from promptcli.cli.console import Grid
from promptcli.cli.result_files import Report, TablesAndLines, best_cells, text_of
from promptcli.errors import NotFoundError
from promptcli.named_templates import last_part
from promptcli.plugins.papers.contexts import EXAMPLES, backbone_stem
from promptcli.plugins.papers.documents import published_value
from promptcli.plugins.papers.measures import COLUMNS
from promptcli.plugins.papers.published import published_tables
from promptcli.settings import spell_value
from promptcli.storage import files

Document = Mapping[str, Any]  #: of a table, of one of its rows, or of a row's published values


class TableLine(NamedTuple):
    """A printed line of a row of a table."""

    #: ``measured`` or ``missing``; then lines of the kinds ``interval``, ``published``,
    #: ``difference``
    kind: str
    label: str
    cells: list[str]  #: one for each column


def column_headers(document: Document) -> list[str]:
    """Return the column headers; that of an average names its number of tasks."""
    headers = []
    for column in document["columns"]:
        count = _task_count(document, column)
        tasks = f" ({count} of {len(COLUMNS[column].mean_of)})" if count else ""
        headers.append(COLUMNS[column].header + tasks)
    return headers


def _task_count(document: Document, column: str) -> int:
    """Return the number of tasks of a measured average; 0 if the column has no average."""
    if not COLUMNS[column].mean_of:
        return 0
    cells = [row["figures"].get(column) for row in document["rows"]]
    return max((len(cell["on"]) for cell in cells if cell), default=0)


def records(document: Document) -> list[dict[str, Any]]:
    """Return the rows of a CSV, one for each value of the table."""
    backbone = document["backbone"]
    records = []
    for row in document["rows"]:
        published = row["published"]
        for column in document["columns"]:
            cell = row["figures"].get(column, {})
            value = published_value(published, column)
            task_count = len(COLUMNS[column].mean_of)
            published_tasks = task_count if value is not None else 0
            if published_tasks and "average_of_same_tasks" in published:
                published_tasks = _task_count(document, column)
            low, high = cell.get("ci95") or ("", "")
            records.append(
                {
                    "table": document["table"],
                    "backbone": backbone["name"] if backbone else "",
                    "method": row["method"],
                    "setting": row["setting"],
                    "column": COLUMNS[column].header,
                    "measured": _as_text(cell.get("value")),
                    "tasks": len(cell.get("on", ())) if task_count and cell else "",
                    "ci95_low": low,
                    "ci95_high": high,
                    "std": cell.get("std", ""),
                    "published": _as_text(value),
                    "published_tasks": published_tasks or "",
                    "published_std": published["std"].get(column, ""),
                    "published_backbone": published["backbone"],
                    "difference": row["difference"].get(column, ""),
                    "not_measured": row["not_measured"].get(column, ""),
                }
            )
    return records


def _as_text(value: Any) -> Any:
    """Return a value as a cell; a list of tokens becomes a text, and a number stays a number."""
    if value is None:
        return ""
    return ", ".join(value) if isinstance(value, list) else value


def row_lines(row: Document, columns: Sequence[str]) -> Iterator[TableLine]:
    """Yield the lines of a row: the measured values, their intervals or standard deviations, the
    published values, and the differences.
    """
    cells = {column: row["figures"][column] for column in columns if column in row["figures"]}
    if cells:
        values = {column: cell["value"] for column, cell in cells.items()}
        texts = [text or "-" for text in _texts(columns, values)]
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
    published = row["published"]
    if published["figures"]:
        published_values = {column: published_value(published, column) for column in columns}
        texts = _texts(columns, published_values)
        for place, column in enumerate(columns):
            if column in published.get("other_tasks", ()):
                texts[place] += f" (of {published['other_tasks'][column]})"
        backbone = "" if published["own"] else f" for {last_part(published['backbone'])}"
        yield TableLine("published", f"published{backbone}", texts)
    if row["difference"]:
        yield TableLine("difference", "difference", _texts(columns, row["difference"], "+"))


def _label(row: Document) -> str:
    """Return a row's method and setting, and if it is measured its head and fitting data."""
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


def _texts(columns: Sequence[str], values: Document, sign: str = "") -> list[str]:
    """Return the values of columns in the columns' formats; the text of a missing value is empty.

    ``sign`` is the sign option of a format specification.
    """
    texts = []
    for column in columns:
        value = values.get(column)
        decimals = COLUMNS[column].decimals
        if isinstance(value, bool | str | list | None):
            texts.append(str(_as_text(value)))
        elif decimals is not None:
            texts.append(f"{value:{sign}.{decimals}f}")
        else:
            texts.append(f"{value:{sign}g}" if isinstance(value, float) else str(value))
    return texts


def remarks(document: Document) -> list[str]:
    """Return the reasons why rows and columns are missing, and the notes on published rows.

    Missing data are left out, since the caption names them.
    """
    columns = document["columns"]
    row_remarks = []
    reasons_of_columns: dict[str, None] = {}
    notes = []
    for row in document["rows"]:
        not_measured = row["not_measured"]
        reasons = dict.fromkeys(not_measured.get(column, "not measured") for column in columns)
        if any(column in row["figures"] for column in columns):
            reasons_of_columns |= reasons
        else:
            row_remarks.append((_label(row), f"not measured: {'; '.join(reasons)}"))
        if row["note"]:
            notes.append((f"{row['method']} on {row['published']['backbone']}", row["note"]))
    reasons_of_columns.pop("not measured", None)
    column_remarks = [text for text in reasons_of_columns if not text.startswith("no data")]
    return [*_by_text(row_remarks), *column_remarks, *_by_text(notes)]


def _by_text(remarks: Iterable[tuple[str, str]]) -> list[str]:
    """Return remarks on methods, each text once: ``METHOD, METHOD: TEXT``."""
    methods_of: dict[str, dict[str, None]] = {}
    for method, text in remarks:
        methods_of.setdefault(text, {})[method] = None
    return [f"{', '.join(methods)}: {text}" for text, methods in methods_of.items()]


def table_of(document: Document, *, intervals: bool = True) -> Grid:
    """Return the lines of all rows, under the column headers."""
    lines: list[list[str]] = []
    measured_lines = []
    for row in document["rows"]:
        for line in row_lines(row, document["columns"]):
            if line.kind == "measured":
                measured_lines.append(len(lines))
            indent = "" if line.kind in ("measured", "missing") else "  "
            if intervals or line.kind != "interval":
                lines.append([f"{indent}{line.label}", *line.cells])
    columns = enumerate(document["columns"], 1)
    score_columns = [number for number, column in columns if COLUMNS[column].is_score]
    best = best_cells(lines, score_columns, measured_lines)
    return Grid(["", *column_headers(document)], lines, best)


def caption(document: Document) -> list[str]:
    """Return the lines above a table: its backbone, protocol, data and seeds."""
    lines: list[str] = []
    if document["backbone"] is not None:
        lines += _backbone_lines(document["backbone"])
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
    lines += _training_lines(document)
    counts = {name: _task_count(document, name) for name in document["columns"]}
    if any(0 < count < len(COLUMNS[name].mean_of) for name, count in counts.items()):
        lines.append("Avg: mean of the available tasks")
        lines.append(
            "published Avg: mean of the same tasks where the paper gives them, otherwise of all"
            " seven, marked (of 7)"
        )
    published_rows = [row["published"] for row in rows if row["figures"]]
    if any(published["figures"] and not published["own"] for published in published_rows):
        lines.append("published figures are for other backbones, so no difference is shown")
    return lines


def _backbone_lines(backbone: Document) -> list[str]:
    name = backbone["name"]
    published = backbone["published"]
    if backbone_stem(backbone) != name:
        name += f" ({backbone['id']})"
        if published is not None:
            name += f", which is {published}"
    lines = [f"backbone {name}, weights {backbone['weights_sha256'][:12]}, {backbone['dtype']}"]
    if published == "mini-bert":
        lines.append(
            "mini-bert saw templates in pre-training: its figures are not evidence for the papers'"
            " claims about plain BERT"
        )
    return lines


def _training_lines(document: Document) -> Iterator[str]:
    """Yield lines about the fitting and training data, and the seeds and settings of training.

    The JSON document has all settings; the lines name those that differ from the paper's.
    """
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
    settings = []
    for row in document["rows"]:
        if row["figures"] and _is_trained(row):
            name = f"{_label(row).partition(',')[0]} as on {row['published']['backbone']}"
            settings.append((name, _differences(row["training"]["differs"])))
    yield from _by_text(settings)


def _is_trained(row: Document) -> bool:
    return str(row["run"]).startswith("trained:")


def _differences(differs: Mapping[str, Sequence[Any]] | None) -> str:
    """Return the differences of a training's settings from the paper's, as words."""
    if differs is None:
        return "the paper's settings are not known here"
    if not differs:
        return "trained with the paper's settings"
    differences = []
    for name, (ours, theirs) in differs.items():
        setting = name.replace("_", " ")
        differences.append(f"{setting} {spell_value(ours)} ({spell_value(theirs)})")
    return f"differs from the paper: {', '.join(differences)}"


def lay_out(document: Document, *, intervals: bool) -> TablesAndLines:
    """Return a result document for a terminal: a caption, the table and remarks."""
    return [
        f"{document['table']}: {document['title']}",
        *caption(document),
        table_of(document, intervals=intervals),
        *remarks(document),
    ]


def lay_out_section(document: Document, *, level: int = 1, folder: str = "") -> TablesAndLines:
    """Return a result document as the section of a page, under a heading of that level.

    ``folder`` is the folder of the pictures, relative to the page and with a final slash.
    """
    title = document["title"]
    pictures = [
        f"![{title}]({folder}{row['figures']['picture']['value']})"
        for row in document["rows"]
        if "picture" in row["figures"]
    ]
    return [
        f"{'#' * level} {document['table']}, {document['backbone']['name']}: {title}",
        "\n".join(f"- {line}" for line in caption(document)),
        table_of(document),
        *pictures,
        "\n".join(f"- {remark}" for remark in remarks(document)),
    ]


_PAGE = """\
# Results

The tables and figures of the papers that were measured here, on {}. The published figure is below
each measured one; if it is for another backbone, that is named and no difference is shown. Figures\
 are Spearman x 100
unless the column says otherwise. `promptcli reproduce page` writes this page from the files in\
 `results/`.
"""


def results_page(documents: Sequence[Document], folder: str = "../results/") -> str:
    """Return the page of results; ``folder`` is their folder, relative to the page."""
    names = dict.fromkeys(f"`{document['backbone']['name']}`" for document in documents)
    tables_and_lines: TablesAndLines = [_PAGE.format(", ".join(names))]
    for document in documents:
        tables_and_lines += lay_out_section(document, level=2, folder=folder)
    return text_of(Report({}, tables_and_lines, []), "markdown")


def write_result(folder: Path, document: Document) -> Path:
    """Write a result document as JSON, and as Markdown next to it; return the JSON's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_stem(document)}.json"
    files.write_text(path, json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    markdown = text_of(Report({}, lay_out_section(document), []), "markdown")
    files.write_text(path.with_suffix(".md"), markdown)
    return path


def file_stem(document: Document) -> str:
    """Return the name of a result's files without extension: ``promptbert-5.mini-bert``."""
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
    tables = list(published_tables())
    return sorted(
        documents,
        key=lambda document: (tables.index(document["table"]), file_stem(document)),
    )


def write_page(folder: Path, page: Path) -> int:
    """Write the page of all results of a folder; return the number of results."""
    documents = read_results(folder)
    page.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(page, results_page(documents, f"{os.path.relpath(folder, page.parent)}/"))
    return len(documents)
