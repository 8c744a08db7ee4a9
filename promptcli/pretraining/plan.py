"""What a pre-training run does, as plain data: shape of the model, phases, optimiser. Equal plans give equal runs."""

import dataclasses
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from promptcli.errors import UsageError

#: Tokens of the longest chunk but for [CLS] and [SEP] that each phase aims at; one is drawn for every chunk.
SHORT = (20, 40, 62, 62)
LONG = (20, 40, 62, 126, 254, 510)


@dataclass(frozen=True)
class Phase:
    """A stretch of the run.

    Attributes:
        until: Share of the token budget at which it ends.
        lengths: Target lengths of the chunks, in tokens without [CLS] and [SEP].
        dropout: Of hidden states and attention.
    """

    until: float
    lengths: tuple[int, ...]
    dropout: float


@dataclass(frozen=True)
class Plan:
    """A pre-training run.

    Attributes:
        layers, width, heads, positions: Shape of the BERT; heads of 32 where None was given.
        vocab_size: Items of the WordPiece vocabulary, specials included.
        tied: The output embeddings are the input embeddings; else they only start as equal numbers.
        tokens: Budget: tokens seen, specials included.
        batch_tokens: Tokens of one step, padding included.
        learning_rate: Peak; linear warm-up over ``warmup`` of the budget, then linear to 0.
        masking: Share of the tokens to be predicted: 80% of them [MASK], 10% random, 10% kept.
        last_phase: Share of the budget seen with ``dropout`` and with chunks of up to ``positions``.
        svd_start: Token embeddings start from a PPMI-SVD of the corpus.
        seed: Of everything random.
        files: SHA-256 of each corpus file, in order; those of unrelated lines marked.
    """

    layers: int = 4
    width: int = 256
    heads: int = 8
    positions: int = 512
    vocab_size: int = 16384
    tied: bool = True
    tokens: int = 0
    batch_tokens: int = 4096
    learning_rate: float = 1e-3
    warmup: float = 0.02
    weight_decay: float = 0.01
    masking: float = 0.2
    last_phase: float = 0.3
    dropout: float = 0.1
    svd_start: bool = True
    seed: int = 0
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise UsageError(f"--width {self.width} is no multiple of --heads {self.heads}")
        shares = ("masking", "last_phase", "dropout", "warmup")
        wrong = [name for name in shares if not 0 <= getattr(self, name) < 1]
        if wrong or not self.masking:
            name = (wrong or ["masking"])[0]
            raise UsageError(f"--{name.replace('_', '-')} {getattr(self, name)} is not allowed; give a share below 1")
        if self.positions < 16 or self.batch_tokens < self.positions:
            raise UsageError(
                f"--positions {self.positions} with --batch-tokens {self.batch_tokens} is not allowed; give at least 16"
                " positions, and batches that hold one chunk of that length"
            )

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The stretches of the run, in order."""
        short, long = (
            tuple(length for length in lengths if length <= self.positions - 2) or (self.positions - 2,)
            for lengths in (SHORT, LONG)
        )
        last = Phase(1.0, long, self.dropout)
        return (last,) if self.last_phase == 0 else (Phase(1 - self.last_phase, short, 0.0), last)

    def learning_rate_at(self, seen: int) -> float:
        """Return the learning rate after that many tokens."""
        share = seen / self.tokens
        rise = min(1.0, share / self.warmup) if self.warmup else 1.0
        return self.learning_rate * rise * max(0.0, 1 - share)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Plan":
        """Return the plan of what ``to_dict`` gave; unknown fields are refused.

        Raises:
            UsageError: A field is unknown or of another type.
        """
        hints = get_type_hints(cls)
        for name, value in fields.items():
            kinds = (list,) if name == "files" else get_args(hints.get(name)) or (hints.get(name), int)
            if name not in hints or not isinstance(value, kinds):
                raise UsageError(f"the run's plan.json has no usable field {name!r}; start anew in another folder")
        return cls(**{**fields, "files": tuple(fields.get("files", ()))})

    def difference(self, other: "Plan") -> str | None:
        """Return the name of the first field that differs, or None."""
        return next((name for name in self.to_dict() if getattr(self, name) != getattr(other, name)), None)
