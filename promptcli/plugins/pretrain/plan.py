"""The settings of a pre-training run: model shape, phases, optimiser.

Equal plans give equal runs.
"""

import itertools
from dataclasses import dataclass

from promptcli.errors import UsageError
from promptcli.settings import check_bounds, setting

#: target lengths of chunks without [CLS] and [SEP]; one is drawn for each chunk
SHORT = (20, 40, 62, 62)
LONG = (20, 40, 62, 126, 254, 510)
BAGS = "bag-of-words"
_HEAD_WIDTH = 32  # if the number of heads is not given
#: Defaults of a run from a model of others. Learning rate and masking are those of the published
#: code of Gururangan et al. 2020 (arXiv 2004.10964) for task-adaptive pre-training; the warm-up is
#: our choice.
CONTINUED = {"learning_rate": 1e-4, "warmup": 0.06, "masking": 0.15}


@dataclass(frozen=True)
class Phase:
    """A phase of the run."""

    until: float  #: share of the token budget at which it ends
    lengths: tuple[int, ...]  #: target lengths of the chunks, in tokens without [CLS] and [SEP]
    dropout: float  #: of hidden states and attention


@dataclass(frozen=True)
class Plan:
    """A pre-training run."""

    layers: int = setting(4, "Layers.", panel="Model", min=1, max=1000)
    width: int = setting(256, "Width of the hidden states.", panel="Model", min=8, max=65_536)
    heads: int = setting(0, "Attention heads; 0: each 32 wide.", panel="Model", min=0)
    positions: int = setting(512, "Longest input in tokens.", panel="Model", min=16, max=1 << 20)
    vocab_size: int = setting(
        16384, "WordPiece items, specials included.", panel="Model", min=100, max=1 << 20
    )
    tied: bool = setting(
        True,
        "Output embeddings: the input embeddings, or separate ones that start as equals.",
        panel="Model",
    )
    objective: str = setting(
        "masked",
        "masked: hidden tokens are predicted; bag-of-words: also the words of sentences at the"
        " masks of templates.",
        choices=("masked", BAGS),
    )
    tokens: int = setting(0, "Token budget, specials included.", min=0)
    batch_tokens: int = setting(4096, "Tokens a step, padding included. On a GPU: 65536.")
    learning_rate: float = setting(
        1e-3,
        "Peak learning rate. Default: 0.001, and 0.0001 from a model that others made.",
        min=0,
        max=1_000_000,
    )
    warmup: float = setting(
        0.02, "Share of the budget in which the learning rate rises.", min=0, below=1
    )
    decay: float = setting(
        1.0, "Share at the end in which it falls to 0; in between it is constant.", above=0, max=1
    )
    weight_decay: float = setting(0.01, "Weight decay of matrices.", min=0)
    masking: float = setting(0.2, "Share of tokens to predict.", above=0, below=1)
    at_start: float = setting(
        0.25,
        "Share of chunks at position 0; the others begin anywhere in the position table.",
        min=0,
        max=1,
    )
    templated: float = setting(
        0.75, "Bag-of-words: share of steps whose sentences are put into templates.", min=0, max=1
    )
    dropout: float = setting(0.1, "Dropout, in the later part of the run.", min=0, below=1)
    dropout_from: float = setting(
        0.5, "Share of the budget after which dropout begins.", min=0, max=1
    )
    long_from: float = setting(
        0.9, "Share of the budget after which chunks are long, up to `positions`.", min=0, max=1
    )
    seed: int = setting(0, "Random seed.", min=0, max=(1 << 32) - 1)
    begun_from: str = ""  #: SHA-256 of the weights that the run starts from
    templates: str = ""  #: SHA-256 of the file of templates
    files: tuple[
        str, ...
    ] = ()  #: SHA-256 of each corpus file, in order; those of unrelated lines marked

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
        if self.warmup:
            rise = min(1.0, share / self.warmup)
        else:
            rise = 1.0
        return self.learning_rate * rise * min(1.0, max(0.0, 1 - share) / self.decay)
