"""What a training method is, as plain data: prompts of the two views, what learns, heads, and its settings."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from promptcli.recipe import SLOT, Recipe


@dataclass(frozen=True)
class Settings:
    """Hyper-parameters of a run; every one is an option of the same name.

    Attributes:
        batch_size: Examples a step; all its other sentences are negatives.
        learning_rate: Start of the linear decay to 0, without warm-up.
        epochs: Passes over the data.
        eval_steps: Steps between two looks at the development set.
        temperature: tau of the contrastive loss.
        max_length: Longest sentence in tokens; whether [CLS] and [SEP] count is the method's.
        prefix_length: p of a deep prefix.
        dropout: Of the backbone while training: it makes the second view.
        weight_decay: AdamW's.
        seed: Of everything random.
    """

    batch_size: int = field(default=64, metadata={"help": "Examples a step."})
    learning_rate: float = field(default=3e-5, metadata={"help": "Learning rate, decaying linearly to 0."})
    epochs: float = field(default=1.0, metadata={"help": "Passes over the data."})
    eval_steps: int = field(default=125, metadata={"help": "Steps between two looks at the development set."})
    temperature: float = field(default=0.05, metadata={"help": "Temperature of the contrastive loss."})
    max_length: int = field(default=32, metadata={"help": "Longest sentence in tokens."})
    prefix_length: int = field(default=16, metadata={"help": "Length of a deep prefix."})
    dropout: float = field(default=0.1, metadata={"help": "Dropout of the backbone: it makes the second view."})
    weight_decay: float = field(default=0.0, metadata={"help": "Weight decay of AdamW."})
    seed: int = field(default=42, metadata={"help": "Of everything random."})

    def replace(self, **changes: Any) -> "Settings":
        """Return a copy with ``changes``."""
        return dataclasses.replace(self, **changes)


@dataclass(frozen=True)
class Variant:
    """What a method does for one kind of backbones.

    Attributes:
        views: Prompts of the two views; the first is also the test's. ``{p}`` is the prefix length.
        head: Projection while training (``tanh``, ``mlm``).
        denoise_at_test: Where the kept head's encoder takes h - h_hat; ``none`` where it does not.
    """

    views: tuple[str, str] = (SLOT, SLOT)
    head: str = "tanh"
    denoise_at_test: str = "none"


@dataclass(frozen=True)
class Method:
    """A training method of a paper, unsupervised or supervised.

    Attributes:
        name: As typed.
        source: Paper and section.
        pooling: Of the sentence vector.
        learns: ``backbone``, ``prompt``; the head always learns.
        variants: By family of backbones; ``*`` for those not named.
        keeps_head: The head stays at test time (supervised runs).
        denoised: Template denoising while training.
        counts_specials: ``max_length`` counts [CLS] and [SEP]; else the sentence's own tokens only.
        settings: In force where the backbone is not a published one.
        paper: By backbone, the published settings that differ from METHODS' shared ones.
    """

    name: str
    source: str
    pooling: str
    learns: tuple[str, ...]
    variants: Mapping[str, Variant]
    settings: Settings
    paper: Mapping[str, Settings]
    keeps_head: bool = False
    denoised: bool = False
    counts_specials: bool = True

    def variant(self, family: str) -> Variant:
        """Return what holds for a family of backbones."""
        return self.variants.get(family, self.variants["*"])

    def recipe(self, backbone: str, family: str, settings: Settings) -> Recipe:
        """Return the recipe that the trained encoder is used by."""
        variant = self.variant(family)
        return Recipe(
            backbone=backbone,
            prompt=variant.views[0].format(p=settings.prefix_length),
            pooling=self.pooling,
            transforms=(f"projection:{variant.head}",) if self.keeps_head else (),
            denoise=variant.denoise_at_test if self.keeps_head else "none",
        )

    def baseline(self, backbone: str, family: str) -> Recipe:
        """Return the untrained encoder that a run is measured against: the same without anything learned."""
        prompt = self.variant(family).views[0].removeprefix("soft-template:")
        words = SLOT if prompt.startswith("deep-prefix:") else prompt
        return Recipe(backbone=backbone, prompt=words, pooling=self.pooling)
