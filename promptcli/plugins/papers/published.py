"""The published tables as data: every row with its values and its way of measurement.

This module imports nothing heavy.
"""

import functools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.errors import UsageError
from promptcli.settings import setting

NO_MODEL = "own pre-training"  #: the backbone of rows whose models were never published
ANY_MODEL = "any"  #: the backbone of rows without published values, measured on any backbone
GIVEN_AS = {"GloVe": "glove:"}  #: the papers' name of word vectors -> prefix of the file's name
Facts = dict[str, Any]  #: JSON-ready values by their names
Value = float | str | list[str]  #: a number, or a list of tokens, a template, a head


@dataclass(frozen=True)
class PublishedRow:
    """One published row."""

    method: str  #: its name in the paper
    backbone: str
    run: str  #: ``KIND:ARGUMENT``; the kind is an entry of ``SYSTEMS``
    published: Mapping[str, Value]  #: values by column
    std: Mapping[str, float]  #: printed standard deviations by column
    setting: str = "learning-free"  #: fitted transforms included; else ``unsup`` or ``sup``
    note: str = ""  #: a remark on the values

    @property
    def kind(self) -> str:
        """The name of its entry in ``SYSTEMS``."""
        return self.run.partition(":")[0]

    @property
    def argument(self) -> str:
        return self.run.partition(":")[2]

    @property
    def label(self) -> str:
        """The method, with the setting if it is trained."""
        if self.setting == "learning-free":
            return self.method
        return f"{self.method} ({self.setting})"


@dataclass(frozen=True)
class PublishedTable:
    """One published table or figure."""

    name: str  #: ``PAPER/NUMBER``
    title: str  #: title in our own words
    columns: tuple[str, ...]  #: names of columns in ``MEASURES``
    rows: tuple[PublishedRow, ...]  #: in the paper's order

    @property
    def backbones(self) -> list[str]:
        return list(dict.fromkeys(row.backbone for row in self.rows))


@functools.cache
def published_tables() -> Mapping[str, PublishedTable]:
    """Return all tables by name, paper after paper."""
    with (Path(__file__).parent / "published.toml").open("rb") as file:
        return {name: _table(name, fields) for name, fields in tomllib.load(file).items()}


def find_tables(names: str | Sequence[str]) -> list[PublishedTable]:
    """Return the tables named: ``promptbert/5``, ``promptbert`` (all of a paper), or ``all``."""
    if isinstance(names, str):
        names = [names]
    tables: dict[str, PublishedTable] = {}
    for name in names:
        named = {
            key: table
            for key, table in published_tables().items()
            if name in ("all", key, key.split("/")[0])
        }
        if not named:
            raise UsageError(
                f"unknown table {name!r}; see `promptcli reproduce list`, e.g. promptbert/5,"
                " ditto, all"
            )
        tables |= named
    return list(tables.values())


def short_name(backbone: str) -> str:
    """Return a backbone's name without owner, folder and revision.

    Word vectors have the papers' name.
    """
    for name, prefix in GIVEN_AS.items():
        if backbone.startswith(prefix):
            return name
    return backbone.partition("@")[0].rstrip("/").rpartition("/")[2]


def _table(name: str, fields: Mapping[str, Any]) -> PublishedTable:
    columns = tuple(fields["columns"])
    rows = []
    for row in fields["rows"]:
        others = dict(row)
        # cells that a paper leaves empty are at the end
        published = dict(zip(columns, others.pop("scores"), strict=False))
        std = dict(zip(columns, others.pop("std", ()), strict=False))
        rows.append(PublishedRow(**others, published=published, std=std))
    return PublishedTable(name, fields["title"], columns, tuple(rows))


_PANEL = "Data of fitted and trained rows"


@dataclass(frozen=True)
class Texts:
    """Files, or names of data sets to fetch."""

    corpus: str = setting(
        "demo",
        "Sentences to fit, count and train on, also for anisotropy and impact: a file, task, hub"
        " name, or `demo`.",
        panel=_PANEL,
    )
    triplets: str | None = setting(
        None,
        "Pairs or triplets, a file or hub name, to train supervised rows and to fit flow and"
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
