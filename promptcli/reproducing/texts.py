"""The data that rows are fitted, counted and trained on; imports nothing heavy, since the command line reads it."""

from dataclasses import dataclass

from promptcli.settings import setting

_PANEL = "Data of fitted and trained rows"


@dataclass(frozen=True)
class Texts:
    """Files, or names of data sets that are fetched."""

    corpus: str = setting(
        "demo",
        "Sentences to fit, count and train on, for anisotropy and impact too: a file, task, hub name, or `demo`.",
        panel=_PANEL,
    )
    triplets: str | None = setting(
        None,
        "Pairs or triplets, a file or hub name: supervised rows are trained on them, flow and whitening fitted.",
        panel=_PANEL,
    )
    labelled: str | None = setting(
        None, "Labelled pairs (premise, hypothesis, label), a file: for SBERT, ConSERT (sup).", panel=_PANEL
    )
    definitions: str | None = setting(None, "Words and definitions, a file: for DefSent.", panel=_PANEL)
