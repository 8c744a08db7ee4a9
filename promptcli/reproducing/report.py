"""A result document as lines of cells and as Markdown, kept in files."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from promptcli.errors import NotFoundError
from promptcli.reproducing.measures import COLUMNS, grouped
from promptcli.reproducing.published import published_tables
from promptcli.reproducing.systems import SYSTEMS
from promptcli.storage.files import write_text


class TableLine(NamedTuple):
    """One line of a table."""

    kind: str  #: a key of ``_NAMES``, or ``reason``; ``other`` is published for another backbone
    label: str
    cells: list[str]  #: one per column; for ``reason`` a single text


def heads(document: Mapping[str, Any]) -> list[str]:
    """Return the heads of the columns; an average over fewer tasks names their number."""
    names = []
    for name in document["columns"]:
        column = COLUMNS[name]
        tasks = max(
            (len(row["figures"][name]["on"]) for row in document["rows"] if name in row["figures"]),
            default=0,
        )
        fewer = 0 < tasks < len(column.mean_of)
        names.append(f"{column.head} ({tasks} of {len(column.mean_of)})" if fewer else column.head)
    return names


def table_lines(document: Mapping[str, Any]) -> Iterator[TableLine]:
    """Yield the lines of all rows; rows of one method, measured on another backbone, are joined."""
    groups: dict[object, list[Mapping[str, Any]]] = {}
    for number, row in enumerate(document["rows"]):
        same = row["figures"] and row["recipe_id"] and not row["published"]["own"]
        groups.setdefault(
            (row["method"], row["setting"], row["recipe_id"]) if same else number, []
        ).append(row)
    for rows in groups.values():
        yield from row_lines(rows[0], document["columns"])
        for row in rows[1:]:
            yield from _published(row["published"], document["columns"])


def row_lines(row: Mapping[str, Any], columns: list[str]) -> Iterator[TableLine]:
    """Yield the lines of one row: measured, its intervals, published, the difference, or the
    reason.
    """
    label = _label(row)
    shown = {column: row["figures"][column] for column in columns if column in row["figures"]}
    if shown:
        values = {column: figure["value"] for column, figure in shown.items()}
        halves = {
            name: (figure["ci95"][1] - figure["ci95"][0]) / 2
            for name, figure in shown.items()
            if figure["ci95"]
        }
        stds = {column: figure["std"] for column, figure in shown.items() if "std" in figure}
        recipe = f"recipe {row['recipe_id']}" if row["recipe_id"] else "±"
        yield TableLine(
            "measured", label, [_text(column, values.get(column)) or "-" for column in columns]
        )
        for name, spread in ((recipe, halves), (f"recipe {row['recipe_id']}, std", stds)):
            if spread:
                cells = [
                    f"±{_text(column, spread[column])}" if column in spread else ""
                    for column in columns
                ]
                yield TableLine("interval", name, cells)
    else:
        lacks = grouped(row["not_measured"].get(column, "not measured") for column in columns)
        yield TableLine("reason", label, ["; ".join(lacks)])
    yield from _published(row["published"], columns)
    if row["difference"]:
        cells = [_text(column, row["difference"].get(column), "+") for column in columns]
        yield TableLine("difference", "difference", cells)


def _label(row: Mapping[str, Any]) -> str:
    """Return a row's method, its setting, and what it was made with here: a head, a text."""
    label = (
        row["method"]
        if row["setting"] == "learning-free"
        else f"{row['method']} ({row['setting']})"
    )
    if not row["figures"]:
        return str(label)
    head, text = row.get("head"), row.get("fitted_on")  # which older files of results do not have
    if head is not None:
        label += f", head {head}"
    if text is not None:
        label += f", {'trained' if row['run'].startswith('trained:') else 'fitted'} on {text}"
    return str(label)


def _published(published: Mapping[str, Any], columns: list[str]) -> Iterator[TableLine]:
    if published["figures"]:
        cells = [_text(column, published["figures"].get(column)) for column in columns]
        if "average_of_same_tasks" in published:
            mean = next(column for column in columns if COLUMNS[column].mean_of)
            cells[columns.index(mean)] = _text(mean, published["average_of_same_tasks"])
        kind = "published" if published["own"] else "other"
        yield TableLine(kind, published["backbone"].split("/")[-1], cells)


def _text(column: str, value: Any, sign: str = "") -> str:
    """Return a value in its column's format, None as nothing; ``sign`` as in a format."""
    decimals = COLUMNS[column].decimals
    if value is None or isinstance(value, str | list):
        return ", ".join([value] if isinstance(value, str) else value or [])
    if decimals is None:
        return f"{value:{sign}g}" if isinstance(value, float) else str(value)
    return f"{value:{sign}.{decimals}f}"


def reasons(document: Mapping[str, Any]) -> list[str]:
    """Return why columns of measured rows are missing; the caption names missing data."""
    columns = document["columns"]
    rows = [row for row in document["rows"] if any(column in row["figures"] for column in columns)]
    lacks = grouped(
        row["not_measured"][column]
        for row in rows
        for column in columns
        if column in row["not_measured"]
    )
    return [reason for reason in lacks if not reason.startswith("no data")]


def notes(document: Mapping[str, Any]) -> list[str]:
    """Return the notes on published rows, each once with its methods."""
    methods_of: dict[str, list[str]] = {}
    for row in document["rows"]:
        if row["note"]:
            methods_of.setdefault(row["note"], []).append(
                f"{row['method']} on {row['published']['backbone']}"
            )
    return [f"{', '.join(dict.fromkeys(methods))}: {note}" for note, methods in methods_of.items()]


def caption(document: Mapping[str, Any]) -> list[str]:
    """Return the lines about backbone, weights, protocol, seeds and data."""
    backbone, data, lines = document["backbone"], document["data"], list[str]()
    if backbone is not None:
        lines.append(
            f"backbone {backbone['name']}, weights {backbone['weights_sha256'][:12]},"
            f" {backbone['dtype']}"
        )
        if backbone["name"] == "mini-bert":
            claims = "its figures are not evidence for the papers' claims about plain BERT"
            lines.append(f"mini-bert saw templates in pre-training: {claims}")
    if any(figure["ci95"] for row in document["rows"] for figure in row["figures"].values()):
        seed, resamples = document["seeds"]["bootstrap"], document["resamples"]
        interval = f"half of the 95% bootstrap interval ({resamples:,} resamples, seed {seed})"
        lines.append(f"protocol {document['protocol']}; ± {interval}")
    lines += dict.fromkeys(facts["setting"] for facts in data.values() if "setting" in facts)
    if data:
        lines.append(
            "data " + ", ".join(f"{name} {facts['sha256'][:8]}" for name, facts in data.items())
        )
    if document["missing"]:
        lines.append(f"no data: {', '.join(document['missing'])}")
    lines += _about_data(document)
    if any("(" in head for head in heads(document)):
        lines.append("Avg: mean of the available tasks")
        lines.append(
            "published Avg: mean of the same tasks where the paper gives them, otherwise of all"
            " seven"
        )
    published = [row["published"] for row in document["rows"] if row["figures"]]
    if any(printed["figures"] and not printed["own"] for printed in published):
        lines.append("published figures are for other backbones, so no difference is shown")
    return lines


_EXAMPLES = {
    "triplets": "trained (sup), or fitted (flow and whitening), on",
    "labelled": "trained on labelled pairs, flow and whitening then fitted on their sentences:",
    "definitions": "trained on definitions:",
}


def _about_data(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the data of other sizes than the papers', and those that rows were fitted and trained
    on.
    """
    for name, facts in document["data"].items():
        if facts.get("pairs") != facts.get("expected_pairs"):
            yield (
                f"not comparable: {name} has {facts['pairs']} pairs, not {facts['expected_pairs']}"
            )
        for split, (count, printed) in facts.get("unexpected", {}).items():
            yield f"not comparable: {name} has {count} examples in {split}, not {printed}"
    corpus, seeds = document["corpus"], document["seeds"].get("training")
    if corpus is not None:
        rows = [row for row in document["rows"] if row["setting"] != "sup" and row["figures"]]
        trained = "trained, " if any(row["run"].startswith("trained:") for row in rows) else ""
        done = "measured on" if "corpus" in document["data"] else f"{trained}fitted and counted on"
        yield f"{done} {corpus['name']}, {corpus['sentences']:,} sentences, {corpus['sha256'][:8]}"
    if seeds is not None:
        listed = ", ".join(map(str, seeds))
        runs = (
            f"{len(seeds)} runs each, seeds {listed}, mean ± std"
            if len(seeds) > 1
            else f"one run each, seed {listed}"
        )
        yield f"trained rows: {runs}; the notes say what the papers' are"
    for kind, what in _EXAMPLES.items():
        if (examples := document.get(kind)) is not None:
            yield (
                f"{what} {examples['name']}, {examples['examples']:,} examples,"
                f" {examples['sha256'][:8]}"
            )


#: Kind of line -> its first two columns; the braces are its label.
_NAMES = {
    "measured": ("{}", "measured"),
    "interval": ("", "{}"),
    "published": ("", "published, {}"),
    "other": ("", "*published, {}*"),
    "difference": ("", "difference"),
}


def table_page(document: Mapping[str, Any], *, level: int = 1, folder: str = "") -> str:
    """Return one result document as Markdown.

    ``folder`` of its pictures is relative to the page, with a last slash.
    """
    columns = heads(document)
    backbone = "" if document["backbone"] is None else f", {document['backbone']['name']}"
    parts = [f"{'#' * level} {document['table']}{backbone}: {document['title']}", ""]
    parts += [f"- {line}" for line in caption(document)] + [""] * bool(caption(document))
    parts += [_row(["method", "", *columns]), "|" + "---|" * 2 + "---:|" * len(columns)]
    parts += [_line(line, len(columns)) for line in table_lines(document)]
    pictures = [
        row["figures"]["picture"]["value"]
        for row in document["rows"]
        if "picture" in row["figures"]
    ]
    parts += [f"\n![{document['title']}]({folder}{picture})" for picture in pictures]
    remarks = [*reasons(document), *notes(document)]
    parts += [""] * bool(remarks) + [f"- {remark}" for remark in remarks]
    return "\n".join(parts) + "\n"


def results_page(documents: Sequence[Mapping[str, Any]], folder: str = "../results/") -> str:
    """Return the page of all results, whose ``folder`` is relative to it, and of the tables without
    one.
    """
    done = {document["table"] for document in documents}
    backbones = dict.fromkeys(
        document["backbone"]["name"] for document in documents if document["backbone"]
    )
    parts = [
        "# Results",
        "",
        (
            "Generated by `promptcli reproduce page` from the files in `results/`. Figures are"
            " Spearman x 100 unless the"
        ),
        (
            "column says otherwise; the published figure is below each one, in *italics* if it is"
            " for another backbone."
        ),
        f"Backbones: {', '.join(f'`{name}`' for name in backbones)}.",
        "",
    ]
    for document in documents:
        parts += [table_page(document, level=2, folder=folder)]
    parts += [
        "## Tables without a measured figure",
        "",
        _row(["table", "what", "why"]),
        "|---|---|---|",
    ]
    for table in published_tables().values():
        if table.name not in done:
            lacks = (SYSTEMS[row.kind].absent.format(row.argument) for row in table.rows)
            parts.append(
                _row(
                    [
                        table.name,
                        table.title,
                        "; ".join(grouped(filter(None, lacks))) or "not run yet",
                    ]
                )
            )
    return "\n".join(parts) + "\n"


def _line(line: TableLine, columns: int) -> str:
    if line.kind == "reason":
        return _row([line.label, line.cells[0], *[""] * columns])
    cells = [f"*{cell}*" if line.kind == "other" and cell else cell for cell in line.cells]
    return _row([*(name.format(line.label) for name in _NAMES[line.kind]), *cells])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# Files


def write_result(folder: Path, document: Mapping[str, Any]) -> Path:
    """Write a result document as JSON, and as Markdown next to it; return the JSON's path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file_stem(document)}.json"
    write_text(path, json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    write_text(path.with_suffix(".md"), table_page(document))
    return path


def file_stem(document: Mapping[str, Any]) -> str:
    """Return a result file's name without extension: ``promptbert-5.mini``."""
    backbone = document["backbone"]
    table = str(document["table"]).replace("/", "-")
    return table if backbone is None else f"{table}.{backbone['name']}"


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return all result documents of a folder, in the papers' order, then by backbone."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*.json")]
    if not documents:
        raise NotFoundError(
            f"no result in {str(folder)!r}; `promptcli reproduce all` makes them, or give `output`"
        )
    order = list(published_tables())
    return sorted(
        documents, key=lambda document: (order.index(document["table"]), file_stem(document))
    )


def write_page(folder: Path, page: Path) -> int:
    """Write the page of all results of a folder; return their number."""
    documents = read_results(folder)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, results_page(documents, f"{os.path.relpath(folder, page.parent)}/"))
    return len(documents)
