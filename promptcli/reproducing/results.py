"""Result files, JSON and Markdown, one table on one backbone each; and the comparison of a repeated one."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.errors import CheckFailedError, NotFoundError
from promptcli.reproducing.published import published_tables
from promptcli.reproducing.report import results_page, table_page
from promptcli.storage.documents import read_document
from promptcli.storage.files import write_text

#: Tolerance of a repeated figure: rounding of float32 sums in another order of threads.
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


def read_result(path: Path) -> dict[str, Any]:
    """Read a result file that ``write_result`` wrote."""
    if not path.is_file():
        raise NotFoundError(f"no result file {str(path)!r}; `promptcli reproduce TABLE` makes one in results/")
    hint = "make it again by `promptcli reproduce`"
    document: dict[str, Any] = read_document(path, dict[str, Any], hint=hint)
    if document.get("table") not in published_tables() or "rows" not in document:
        raise CheckFailedError(f"{path} is not a result of promptcli; {hint}")
    return document


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return all result documents of a folder, in the papers' order, then by backbone."""
    documents = [read_result(path) for path in folder.glob("*.json")] if folder.is_dir() else []
    if not documents:
        raise NotFoundError(f"no result in {str(folder)!r}; `promptcli reproduce all` makes them, or give `output`")
    order = list(published_tables())
    return sorted(documents, key=lambda document: (order.index(document["table"]), file_stem(document)))


def write_page(folder: Path, page: Path) -> int:
    """Write the page of all results of a folder; return their number."""
    documents = read_results(folder)
    page.parent.mkdir(parents=True, exist_ok=True)
    write_text(page, results_page(documents, f"{os.path.relpath(folder, page.parent)}/"))
    return len(documents)


@dataclass(frozen=True)
class Change:
    """A figure that changed; None if it was not measured."""

    row: str  #: number, method
    column: str
    before: Any
    after: Any


@dataclass(frozen=True)
class Repetition:
    """The comparison of a result with its repetition."""

    figures: int  #: number of figures compared
    largest: float  #: largest difference of two numbers
    changed: list[Change]  #: figures that differ by more than ``SAME``, or are missing on one side
    inputs: list[str]  #: names of weights and data that differ


def compare_results(before: Mapping[str, Any], after: Mapping[str, Any]) -> Repetition:
    """Compare two result documents of the same table, figure by figure."""
    if len(before["rows"]) != len(after["rows"]):
        raise CheckFailedError(f"the file has {len(before['rows'])} rows, not {len(after['rows'])}; make it again")
    count, largest, changed = 0, 0.0, []
    for number, (old, new) in enumerate(zip(before["rows"], after["rows"], strict=True), 1):
        for column in dict.fromkeys([*old["figures"], *new["figures"]]):
            count += 1
            was, now = (side["figures"].get(column, {}).get("value") for side in (old, new))
            same = was == now
            if isinstance(was, float) and isinstance(now, float):
                largest = max(largest, abs(now - was))
                same = abs(now - was) <= SAME
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
    for kind in ("corpus", "triplets", "labelled", "definitions"):
        if (before.get(kind) or {}).get("sha256") != (after.get(kind) or {}).get("sha256"):
            yield kind
