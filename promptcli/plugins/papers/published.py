"""The published tables: each row with its published values and how it is measured here."""

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.errors import UsageError
from promptcli.named_templates import last_part
from promptcli.settings import setting

UNPUBLISHED_BACKBONE = "own pre-training"  #: of rows whose models were never published
ANY_BACKBONE = "any"  #: of rows without published values
WORD_VECTORS = "GloVe"  #: the backbone of rows of word vectors, which users name ``glove:FILE``
Facts = dict[str, Any]  #: JSON-ready values by name
Value = float | str | list[str]  #: a number, a template or head, or a list of tokens


@dataclass(frozen=True)
class PublishedRow:
    """One published row."""

    method: str  #: the paper's name of the method
    backbone: str
    run: str  #: ``KIND:ARGUMENT``; the kinds are those of ``SYSTEMS``
    published: Mapping[str, Value]  #: values by column
    std: Mapping[str, float]  #: published standard deviations by column
    setting: str = "learning-free"  #: also of fitted transforms; or ``unsup``, or ``sup``
    note: str = ""  #: a remark on the published values

    @property
    def kind(self) -> str:
        return self.run.partition(":")[0]

    @property
    def argument(self) -> str:
        return self.run.partition(":")[2]


@dataclass(frozen=True)
class PublishedTable:
    """One published table or figure."""

    name: str  #: ``PAPER/NUMBER``
    title: str  #: in our own words
    columns: tuple[str, ...]  #: the columns are those of ``MEASURES``
    rows: tuple[PublishedRow, ...]  #: in the paper's order

    @property
    def backbones(self) -> list[str]:
        return list(dict.fromkeys(row.backbone for row in self.rows))


@functools.cache
def published_tables() -> Mapping[str, PublishedTable]:
    """Return all tables by name, paper after paper."""
    with (Path(__file__).parent / "published.toml").open("rb") as file:
        documents = tomllib.load(file)
    tables = {}
    for name, document in documents.items():
        columns = tuple(document["columns"])
        rows = []
        for row in document["rows"]:
            # a paper leaves only the last cells of a row empty
            published = dict(zip(columns, row.pop("scores"), strict=False))
            std = dict(zip(columns, row.pop("std", ()), strict=False))
            rows.append(PublishedRow(**row, published=published, std=std))
        tables[name] = PublishedTable(name, document["title"], columns, tuple(rows))
    return tables


def find_tables(names: str | Sequence[str]) -> list[PublishedTable]:
    """Return the tables named: ``promptbert/5``, ``promptbert`` (all of a paper), or ``all``."""
    if isinstance(names, str):
        names = [names]
    tables: dict[str, PublishedTable] = {}
    for name in names:
        matches = {
            key: table
            for key, table in published_tables().items()
            if name in ("all", key, key.split("/")[0])
        }
        if not matches:
            raise UsageError(
                f"unknown table {name!r}; see `promptcli reproduce list`, e.g. promptbert/5,"
                " ditto, all"
            )
        tables |= matches
    return list(tables.values())


def short_name(backbone: str) -> str:
    """Return a backbone's name in the papers: without owner, folder and revision."""
    return WORD_VECTORS if backbone.startswith("glove:") else last_part(backbone)


_PANEL = "Data of fitted and trained rows"


@dataclass(frozen=True)
class Texts:
    """The data of fitted and trained rows: files, or names of data sets to fetch."""

    corpus: str = setting(
        "demo",
        "Sentences to fit, count and train on, and to measure anisotropy and impact on: a file, a"
        " task, a hub name, or `demo`.",
        panel=_PANEL,
    )
    triplets: str | None = setting(
        None,
        "File or hub name of pairs or triplets, to train supervised rows and to fit flow and"
        " whitening.",
        panel=_PANEL,
    )
    labelled: str | None = setting(
        None,
        "File of labelled pairs (premise, hypothesis, label), for SBERT and supervised ConSERT.",
        panel=_PANEL,
    )
    definitions: str | None = setting(
        None, "File of words and definitions, for DefSent.", panel=_PANEL
    )
