"""Result files: one table on one backbone, JSON and Markdown; and what repeating one shows."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptcli.errors import CheckFailedError, NotFoundError
from promptcli.reproducing.measures import Column
from promptcli.reproducing.published import published_tables
from promptcli.reproducing.report import results_page, table_page
from promptcli.storage.documents import read_document, shown, to_json
from promptcli.storage.files import write_text

#: Shape of a result file.
SCHEMA = 1
#: How far a repeated figure may be from the first: rounding of float32 sums in another order of threads.
SAME = 0.005


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


@dataclass(frozen=True)
class ResultFigure:
    """What is read of a figure."""

    value: float | bool | str | list[str] | None
    ci95: tuple[float, float] | None
    on: list[str]


def are_figures(kept: Mapping[str, Any], columns: Mapping[str, Column]) -> bool:
    """Return whether what a cache gave back is figures of some of these columns: numbers where those show numbers."""
    return bool(kept) and all(
        name in columns and isinstance(figure["value"], float | int if columns[name].decimals is not None else object)
        for name, figure in kept.items()
    )


@dataclass(frozen=True)
class ResultRow:
    """What is read of one row of a result."""

    method: str
    figures: dict[str, ResultFigure]


@dataclass(frozen=True)
class ResultBackbone:
    """What is read of a result's backbone."""

    name: str


@dataclass(frozen=True)
class ResultText:
    """What is read of the text that something was fitted or trained on."""

    name: str
    sha256: str


@dataclass(frozen=True)
class ResultSeeds:
    """What is read of a result's seeds."""

    training: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ResultDocument:
    """What is read of a result file."""

    table: str
    rows: list[ResultRow]
    backbone: ResultBackbone | None
    seeds: ResultSeeds
    corpus: ResultText | None
    data: dict[str, dict[str, Any]]
    triplets: ResultText | None = None
    labelled: ResultText | None = None
    definitions: ResultText | None = None
    schema_version: int = SCHEMA


def read_result(path: Path) -> dict[str, Any]:
    """Read a result file."""
    if not path.is_file():
        raise NotFoundError(f"no result file {str(path)!r}; `promptcli reproduce TABLE` makes one in results/")
    hint = "make it again by `promptcli reproduce`"
    document = read_document(path, dict[str, Any], hint=hint)
    read_document(path, ResultDocument, hint=hint, content=to_json(document))
    if document["table"] not in published_tables():
        raise CheckFailedError(f"{path} is of table {shown(document['table'])}, which promptcli does not know; {hint}")
    try:
        table_page(document)
    except Exception as error:  # whatever a field holds that is read for the page alone
        raise CheckFailedError(f"{path} cannot be shown: {type(error).__name__}: {shown(str(error))}; {hint}") from None
    return document


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return all result documents of a folder, in the papers' order, then by backbone."""
    found = [read_result(path) for path in folder.glob("*.json")] if folder.is_dir() else []
    if not found:
        raise NotFoundError(f"no result in {str(folder)!r}; `promptcli reproduce all` makes them, or give `output`")
    order = list(published_tables())
    return sorted(found, key=lambda document: (order.index(document["table"]), file_stem(document)))


def write_page(folder: Path, page: Path) -> int:
    """Write the page of all results of a folder; return how many there are."""
    documents = read_results(folder)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, results_page(documents, f"{os.path.relpath(folder, page.parent)}/"))
    return len(documents)


@dataclass(frozen=True)
class Change:
    """A figure that is not what it was; None where it was not measured."""

    row: str  #: number, method
    column: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Repetition:
    """What repeating a result showed."""

    figures: int  #: how many were compared
    largest: float  #: largest difference of two numbers
    changed: list[Change]  #: those that differ by more than ``SAME``, or are missing on one side
    inputs: list[str]  #: weights and data that are others than the file's, by name


def compare_results(before: Mapping[str, Any], after: Mapping[str, Any]) -> Repetition:
    """Compare two result documents of the same table, figure by figure."""
    if len(before["rows"]) != len(after["rows"]):
        raise CheckFailedError(
            f"the file has {len(before['rows'])} rows, the table {len(after['rows'])}; make it again"
        )
    count, largest, changed = 0, 0.0, []
    for number, (old, new) in enumerate(zip(before["rows"], after["rows"], strict=True), 1):
        for column in dict.fromkeys([*old["figures"], *new["figures"]]):
            count += 1
            was, now = (side["figures"].get(column, {}).get("value") for side in (old, new))
            if isinstance(was, float) and isinstance(now, float):
                largest = max(largest, abs(now - was))
                same = abs(now - was) <= SAME
            else:
                same = was == now
            if not same:
                changed.append(Change(f"{number}. {old['method']}", column, was, now))
    return Repetition(count, round(largest, 4), changed, list(_other_inputs(before, after)))


def _other_inputs(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in ("weights_sha256", "tokenizer_sha256", "dtype"):
        if (before["backbone"] or {}).get(name) != (after["backbone"] or {}).get(name):
            yield name
    for name in sorted(before["data"].keys() | after["data"].keys()):
        if before["data"].get(name, {}).get("sha256") != after["data"].get(name, {}).get("sha256"):
            yield f"data of {name}"
    if (before["corpus"] or {}).get("sha256") != (after["corpus"] or {}).get("sha256"):
        yield "sentences fitted on"
    for kind in ("triplets", "labelled", "definitions"):
        if (before.get(kind) or {}).get("sha256") != (after.get(kind) or {}).get("sha256"):
            yield kind
