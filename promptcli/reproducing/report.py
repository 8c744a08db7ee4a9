"""A result document as lines of cells, for the terminal and for Markdown alike. Knows no model and no console."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptcli.reproducing.measures import column_named
from promptcli.reproducing.planning import grouped

NONE = "-"


@dataclass(frozen=True)
class TableLine:
    """One line of a table.

    Attributes:
        kind: ``measured``, ``interval``, ``published`` (on this backbone), ``other`` (published on another one: grey),
            ``difference``, ``reason``.
        label: What it is.
        cells: One per column; empty where nothing belongs; for ``reason`` a single text.
    """

    kind: str
    label: str
    cells: list[str]


def heads(document: Mapping[str, Any]) -> list[str]:
    """Return the heads of the columns; an average that is not of all tasks says so."""
    return [_head(column, document) for column in document["columns"]]


def table_lines(document: Mapping[str, Any]) -> Iterator[TableLine]:
    """Yield the lines of all rows; rows of one method that another backbone's figures stand for are put together."""
    groups: dict[object, list[Mapping[str, Any]]] = {}
    for number, row in enumerate(document["rows"]):
        same = row["figures"] and row["recipe_id"] and not row["published"]["own"]
        groups.setdefault((row["method"], row["setting"], row["recipe_id"]) if same else number, []).append(row)
    for rows in groups.values():
        yield from row_lines(rows[0], document["columns"])
        for row in rows[1:]:
            yield from _published(row["published"], document["columns"])


def row_lines(row: Mapping[str, Any], columns: list[str]) -> Iterator[TableLine]:
    """Yield the lines of one row: measured, its intervals, published, the difference, what is missing and why."""
    figures = row["figures"]
    label = row["method"] if row["setting"] == "learning-free" else f"{row['method']} ({row['setting']})"
    shown = [column for column in columns if column in figures]
    if shown:
        yield TableLine("measured", label, [_text(column, figures.get(column, {}).get("value")) for column in columns])
        if any(figures[column]["ci95"] for column in shown):
            name = f"recipe {row['recipe_id']}" if row["recipe_id"] else "±"
            yield TableLine("interval", name, [_half(column, figures.get(column)) for column in columns])
        if any("std" in figures[column] for column in shown):
            cells = [_std(column, figures.get(column)) for column in columns]
            yield TableLine("interval", f"recipe {row['recipe_id']}, std", cells)
    else:
        yield TableLine("reason", label, [_reason(row, columns)])
    yield from _published(row["published"], columns)
    if row["difference"]:
        yield TableLine(
            "difference", "difference", [_difference(name, row["difference"].get(name)) for name in columns]
        )


def _published(published: Mapping[str, Any], columns: list[str]) -> Iterator[TableLine]:
    if published["figures"]:
        cells = [_text(column, published["figures"].get(column), absent="") for column in columns]
        if "average_of_same_tasks" in published:
            mean = next(column for column in columns if column_named(column).mean_of)
            cells[columns.index(mean)] = _text(mean, published["average_of_same_tasks"])
        kind = "published" if published["own"] else "other"
        yield TableLine(kind, published["backbone"].split("/")[-1], cells)


def reasons(document: Mapping[str, Any]) -> list[str]:
    """Return why columns of measured rows are missing, but for data, which the caption names."""
    columns = document["columns"]
    rows = [row for row in document["rows"] if any(column in row["figures"] for column in columns)]
    found = grouped(row["not_measured"][column] for row in rows for column in columns if column in row["not_measured"])
    return [reason for reason in found if not reason.startswith("no data")]


def notes(document: Mapping[str, Any]) -> list[str]:
    """Return the notes on published rows, each once with the methods it is about."""
    about: dict[str, list[str]] = {}
    for row in document["rows"]:
        if row["note"]:
            about.setdefault(row["note"], []).append(f"{row['method']} on {row['published']['backbone']}")
    return [f"{', '.join(dict.fromkeys(methods))}: {note}" for note, methods in about.items()]


def caption(document: Mapping[str, Any]) -> list[str]:
    """Return what was measured on what: backbone, weights, protocol, seeds, data."""
    backbone = document["backbone"]
    lines = []
    if backbone is not None:
        lines.append(f"backbone {backbone['name']}, weights {backbone['weights_sha256'][:12]}, {backbone['dtype']}")
    data = document["data"]
    intervals = any(figure["ci95"] for row in document["rows"] for figure in row["figures"].values())
    if intervals:
        seed, resamples = document["seeds"]["bootstrap"], document["resamples"]
        lines.append(
            f"protocol {document['protocol']}; ± half of the 95% bootstrap interval ({resamples:,} resamples,"
            f" seed {seed})"
        )
    lines += list(dict.fromkeys(facts["setting"] for facts in data.values() if "setting" in facts))
    if data:
        lines.append("data " + ", ".join(f"{name} {facts['sha256'][:8]}" for name, facts in data.items()))
    if document["missing"]:
        lines.append(f"no data: {', '.join(document['missing'])}")
    short = [name for name, facts in data.items() if facts.get("pairs") != facts.get("expected_pairs")]
    lines += [
        f"not comparable: {name} has {data[name]['pairs']} pairs, not {data[name]['expected_pairs']}" for name in short
    ]
    lines += [
        f"not comparable: {name} has {count} examples in {split}, not {printed}"
        for name, facts in data.items()
        for split, (count, printed) in facts.get("unexpected", {}).items()
    ]
    corpus = document["corpus"]
    if corpus is not None:
        rows = [row for row in document["rows"] if row["setting"] != "sup" and row["figures"]]
        trained = "trained, " if any(row["run"].startswith("trained:") for row in rows) else ""
        done = "measured on" if "corpus" in data else f"{trained}fitted and counted on"
        lines.append(f"{done} {corpus['name']}, {corpus['sentences']:,} sentences, {corpus['sha256'][:8]}")
    if "training" in document["seeds"]:
        seeds = document["seeds"]["training"]
        many = (
            f"one run each, seed {seeds[0]}"
            if len(seeds) == 1
            else f"{len(seeds)} runs each, seeds {_list(seeds)}, mean ± std"
        )
        lines.append(f"trained rows: {many}; the notes say what the papers' are")
    triplets = document.get("triplets")
    if triplets is not None:
        about = f"{triplets['name']}, {triplets['examples']:,} examples, {triplets['sha256'][:8]}"
        lines.append(f"trained (sup), or fitted (flow and whitening), on {about}")
    if any("(" in head for head in heads(document)):
        lines.append("Avg: of the tasks that are there; the published one too if it is printed by task, else of all")
    published = [row["published"] for row in document["rows"] if row["figures"]]
    if any(printed["figures"] and not printed["own"] for printed in published):
        lines.append("published figures are of other models than this one, so no difference is taken")
    return lines


def _head(column: str, document: Mapping[str, Any]) -> str:
    head = column_named(column).head
    tasks = len(column_named(column).mean_of)
    counts = {len(row["figures"][column]["on"]) for row in document["rows"] if column in row["figures"]}
    if counts and max(counts) < tasks:
        return f"{head} ({max(counts)} of {tasks})"
    return head


def _reason(row: Mapping[str, Any], columns: list[str]) -> str:
    return "; ".join(grouped(row["not_measured"].get(column, "not measured") for column in columns))


def _text(column: str, value: Any, absent: str = NONE) -> str:
    decimals = column_named(column).decimals
    if value is None:
        return absent
    if isinstance(value, list):
        return ", ".join(value)
    if decimals is None or isinstance(value, str):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return f"{value:.{decimals}f}"


def _difference(column: str, value: float | None) -> str:
    if value is None:
        return ""
    decimals = column_named(column).decimals
    return f"{value:+g}" if decimals is None else f"{value:+.{decimals}f}"


def _list(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _std(column: str, figure: Mapping[str, Any] | None) -> str:
    if figure is None or "std" not in figure:
        return ""
    return f"±{figure['std']:.{column_named(column).decimals}f}"


def _half(column: str, figure: Mapping[str, Any] | None) -> str:
    if figure is None or figure["ci95"] is None:
        return ""
    low, high = figure["ci95"]
    return f"±{(high - low) / 2:.{column_named(column).decimals}f}"
