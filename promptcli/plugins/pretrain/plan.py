"""The settings of a pre-training run: the shape of the model, the phases, the optimiser.

Runs with equal plans end with equal weights.
"""

import itertools
from dataclasses import dataclass

from promptcli.errors import UsageError
from promptcli.settings import check_bounds, setting

#: Target lengths of chunks without [CLS] and [SEP]; one of them is drawn for each chunk.
SHORT = (20, 40, 62, 62)
LONG = (20, 40, 62, 126, 254, 510)
BAGS = "bag-of-words"
_HEAD_WIDTH = 32  # of an attention head, if the number of heads is not given
#: Defaults of a run from a model that others made. Learning rate and masking are those of the
#: published code of Gururangan et al. 2020 (arXiv 2004.10964) for task-adaptive pre-training; the
#: warm-up is our choice.
CONTINUED = {"learning_rate": 1e-4, "warmup": 0.06, "masking": 0.15}


@dataclass(frozen=True)
class Phase:
    """A phase of the run."""

    until: float  #: share of the token budget after which the phase ends
    lengths: tuple[int, ...]  #: target lengths of the chunks, in tokens without [CLS] and [SEP]
    dropout: float  #: of hidden states and attention


@dataclass(frozen=True)
class Plan:
    """The settings of a pre-training run."""

    layers: int = setting(4, "Layers.", panel="Model", min=1, max=1000)
    width: int = setting(256, "Width of the hidden states.", panel="Model", min=8, max=65_536)
    heads: int = setting(0, "Attention heads; 0: one for every 32 columns.", panel="Model", min=0)
    positions: int = setting(512, "Longest input in tokens.", panel="Model", min=16, max=1 << 20)
    vocab_size: int = setting(
        16384, "WordPiece items, special tokens included.", panel="Model", min=100, max=1 << 20
    )
    tied: bool = setting(
        True,
        "Whether the output embeddings are the input embeddings. If not, they start as a copy.",
        panel="Model",
    )
    objective: str = setting(
        "masked",
        "masked: masked tokens are predicted; bag-of-words: the masks of templates also predict"
        " the words of their sentences.",
        choices=("masked", BAGS),
    )
    tokens: int = setting(0, "Token budget, special tokens included.", min=0)
    batch_tokens: int = setting(4096, "Tokens of a step, padding included. On a GPU, give 65536.")
    learning_rate: float = setting(
        1e-3,
        "Peak learning rate. Default: 0.001; from a model that others made, 0.0001.",
        min=0,
        max=1_000_000,
    )
    warmup: float = setting(
        0.02, "Share of the budget in which the learning rate rises.", min=0, below=1
    )
    decay: float = setting(
        1.0,
        "Share of the budget, at its end, in which the learning rate falls to 0.",
        above=0,
        max=1,
    )
    weight_decay: float = setting(0.01, "Weight decay of matrices.", min=0)
    masking: float = setting(0.2, "Share of tokens to predict.", above=0, below=1)
    at_start: float = setting(
        0.25,
        "Share of chunks that begin at position 0; the others begin at a random position.",
        min=0,
        max=1,
    )
    templated: float = setting(
        0.75, "Bag-of-words: share of steps whose sentences are put into templates.", min=0, max=1
    )
    dropout: float = setting(0.1, "Dropout in the later part of the run.", min=0, below=1)
    dropout_from: float = setting(
        0.5, "Share of the budget after which dropout begins.", min=0, max=1
    )
    long_from: float = setting(
        0.9, "Share of the budget after which chunks are long, up to `positions`.", min=0, max=1
    )
    seed: int = setting(0, "Random seed.", min=0, max=(1 << 32) - 1)
    begun_from: str = ""  #: SHA-256 of the weights that the run starts from
    templates: str = ""  #: SHA-256 of the file of templates
    #: SHA-256 of each corpus file, in order; a file with unrelated lines is marked
    files: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.heads:
            object.__setattr__(self, "heads", max(1, self.width // _HEAD_WIDTH))
        if self.width % self.heads:
            raise UsageError(
                f"{self.width} is not a multiple of the {self.heads} heads", parameter="width"
            )
        if self.objective != BAGS and self.templated != Plan.templated:
            raise UsageError(f"needs the objective {BAGS}", parameter="templated")
        if self.batch_tokens < self.positions:
            raise UsageError(
                f"{self.batch_tokens} is less than the {self.positions} positions; give more",
                parameter="batch_tokens",
            )

    @property
    def phases(self) -> tuple[Phase, ...]:
        bounds = sorted({0.0, self.dropout_from, self.long_from, 1.0})
        longest = self.positions - 2
        phases = []
        for begins, until in itertools.pairwise(bounds):
            lengths = LONG if begins >= self.long_from else SHORT
            fitting = tuple(length for length in lengths if length <= longest) or (longest,)
            phases.append(
                Phase(until, fitting, self.dropout if begins >= self.dropout_from else 0.0)
            )
        return tuple(phases)

    def learning_rate_at(self, seen: int) -> float:
        """Return the learning rate after ``seen`` tokens: it rises, is constant, and falls to 0."""
        share = seen / self.tokens
        rise = min(1.0, share / self.warmup) if self.warmup else 1.0
        return self.learning_rate * rise * min(1.0, max(0.0, 1 - share) / self.decay)
