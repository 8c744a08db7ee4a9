"""What rows are fitted, counted and trained on, as plain data. Loads nothing heavy: options are made from it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Texts:
    """Files, or names of what is fetched, by the options that give them."""

    corpus: str = field(
        default="demo",
        metadata={
            "help": "Sentences to fit, count and train on, anisotropy and impact too: file, task, hub name, `demo`"
            " (default)."
        },
    )
    triplets: str | None = field(
        default=None,
        metadata={
            "help": "Pairs or triplets, a file or hub name: supervised rows are trained on them, flow and whitening"
            " fitted."
        },
    )
    labelled: str | None = field(
        default=None,
        metadata={"help": "Labelled pairs (premise, hypothesis, label), a file: for SBERT, ConSERT (sup)."},
    )
    definitions: str | None = field(
        default=None, metadata={"help": "Words and definitions, a file: what DefSent learns from."}
    )
