"""What rows are fitted, counted and trained on, as plain data. Loads nothing heavy: options are made from it."""

from dataclasses import dataclass

from promptcli.settings import setting


@dataclass(frozen=True)
class Texts:
    """Files, or names of what is fetched, by the options that give them."""

    corpus: str = setting(
        "demo",
        "Sentences to fit, count and train on, anisotropy and impact too: file, task, hub name, `demo` (default).",
    )
    triplets: str | None = setting(
        None, "Pairs or triplets, a file or hub name: supervised rows are trained on them, flow and whitening fitted."
    )
    labelled: str | None = setting(
        None, "Labelled pairs (premise, hypothesis, label), a file: for SBERT, ConSERT (sup)."
    )
    definitions: str | None = setting(None, "Words and definitions, a file: what DefSent learns from.")
