"""What a training method is, as plain data: prompts of the two views, what learns, heads, and its settings."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from promptcli.encoder.recipe import SLOT, Recipe

#: The backbone whose published settings hold for all that have none of their own.
_BASE = "bert-base-uncased"
#: Below this width the published settings, found on 768 and 1024, are not the best (docs/log.md).
_SMALL = 512


@dataclass(frozen=True)
class TrainingSettings:
    """Hyper-parameters of a run; every one is an option of the same name.

    Attributes:
        batch_size: Examples a step; all its other sentences are negatives.
        learning_rate: Start of the linear decay to 0, without warm-up.
        epochs: Passes over the data.
        eval_steps: Steps between two scores on the development set.
        temperature: tau of the contrastive loss.
        max_length: Longest sentence in tokens; whether [CLS] and [SEP] count is the method's.
        dropout: Of the backbone while training: it makes the second view.
        weight_decay: AdamW's.
        seed: Of everything random.
        mask_duplicates: Equal sentences of a batch are no negatives of one another (the papers: they are).
        chunk_tokens: Padded tokens of one forward pass, 0: by device; a step's rows go in groups of like length.
        gradient_caching: Only one group's activations are held at a time; the others are computed again.
        prefix_length: p of a deep prefix.
        mlm_weight: lambda at the start, the weight of a masked-LM loss beside the contrastive one; 0 for none.
        mlm_head: ``trained`` along, as DCPCSE's code does, or ``frozen``, as its paper says.
        template: Of the first view and, where two are given, of the second; none: the method's own.
        two_templates: The second view has a template of its own (PromptBERT, table 8).
        denoising: Template denoising while training (PromptBERT, table 8).
        bias_positions: ``paper``: as in the input; ``code``: counted from 0, off by 2 for RoBERTa.
        slots: Where learned vectors stand: by ``position``, or, as OptiPrompt's code does, by ``lookup`` of the
            template's words in the whole input, the last occurrence.
        selection: Development score: ``test``: as at test; ``code``: denoised and without the period rule.
    """

    batch_size: int = 64
    learning_rate: float = 3e-5
    epochs: float = 1.0
    eval_steps: int = 125
    temperature: float = 0.05
    max_length: int = 32
    dropout: float = 0.1
    weight_decay: float = 0.0
    seed: int = 42
    mask_duplicates: bool = True
    chunk_tokens: int = 0
    gradient_caching: bool = False
    prefix_length: int = 16
    mlm_weight: float = 0.0
    mlm_head: str = "trained"
    template: tuple[str, ...] = ()
    two_templates: bool = True
    denoising: bool = True
    bias_positions: str = "paper"
    slots: str = "position"
    selection: str = "test"

    def replace(self, **changes: Any) -> "TrainingSettings":
        """Return a copy with ``changes``."""
        return dataclasses.replace(self, **changes)


#: Settings with a closed list of values.
VALUES: Mapping[str, tuple[str, ...]] = {
    "mlm_head": ("trained", "frozen"),
    "bias_positions": ("paper", "code"),
    "slots": ("position", "lookup"),
    "selection": ("test", "code"),
}
#: Settings that some methods do not read.
OWN = ("prefix_length", "mlm_weight", "mlm_head", "template", "two_templates", "denoising", *list(VALUES)[1:])
#: What the published figures were made with, where the papers and their code, or we, would do otherwise.
_PUBLISHED = {"mask_duplicates": False, "bias_positions": "code", "slots": "lookup", "selection": "code"}


@dataclass(frozen=True)
class Variant:
    """What a method does for one kind of backbones.

    Attributes:
        views: Templates of the two views; the first is also the test's.
        learned: What makes a prompt of them, as a recipe writes it before the template: ``{p}`` is the prefix length,
            ``{lookup}`` how learned vectors find their places.
        head: Projection while training (``tanh``, ``mlm``).
        denoise_at_test: Where the kept head's encoder takes h - h_hat; ``none`` where it does not.
    """

    views: tuple[str, str] = (SLOT, SLOT)
    learned: str = ""
    head: str = "tanh"
    denoise_at_test: str = "none"

    def prompts(self, settings: TrainingSettings) -> tuple[str, str]:
        """Return the two views' prompts as a recipe writes them."""
        values = {"p": settings.prefix_length, "lookup": "-lookup" if settings.slots == "lookup" else ""}
        first, second = (self.learned.format(**values) + text for text in self.templates(settings))
        return first, second

    def templates(self, settings: TrainingSettings) -> tuple[str, str]:
        """Return the two views' templates; empty where the prompt has none."""
        views = settings.template or self.views
        return views[0], views[-1] if settings.two_templates else views[0]


@dataclass(frozen=True)
class Method:
    """A training method of a paper, unsupervised or supervised.

    Attributes:
        name: As typed.
        source: Paper and section.
        pooling: Of the sentence vector.
        learns: ``backbone``, ``prompt``; the head always learns.
        variants: By family of backbones; ``*`` for those not named.
        small: Settings for narrow backbones such as ``mini``, found on development pairs.
        paper: By backbone, the published settings.
        reads: Which of ``OWN`` it reads.
        keeps_head: The head stays at test time (supervised runs).
        plain_transfer: Transfer tasks take the vectors before head and denoising.
        counts_specials: ``max_length`` counts [CLS] and [SEP]; else the sentence's own tokens only.
        mlm_decay: lambda's factor every 100 steps.
    """

    name: str
    source: str
    pooling: str
    learns: tuple[str, ...]
    variants: Mapping[str, Variant]
    small: TrainingSettings
    paper: Mapping[str, TrainingSettings]
    reads: tuple[str, ...] = ()
    keeps_head: bool = False
    plain_transfer: bool = False
    counts_specials: bool = True
    mlm_decay: float = 1.0

    def settings(self, backbone: str, width: int) -> TrainingSettings:
        """Return the settings in force for a backbone of that width: its published ones, a small one's, or the base's.

        Where a paper and its code differ they follow the paper; see ``published``.
        """
        if backbone in self.paper:
            return self.paper[backbone]
        return self.small if width < _SMALL else self.paper[_BASE]

    def published(self, backbone: str) -> TrainingSettings:
        """Return the published settings of a backbone, with the choices that made the printed figures."""
        choices = {name: value for name, value in _PUBLISHED.items() if name not in OWN or name in self.reads}
        return self.paper[backbone].replace(**choices)

    @property
    def denoised(self) -> bool:
        """Whether template denoising belongs to the method."""
        return "denoising" in self.reads

    def variant(self, family: str) -> Variant:
        """Return what holds for a family of backbones."""
        return self.variants.get(family, self.variants["*"])

    def recipe(self, backbone: str, family: str, settings: TrainingSettings) -> Recipe:
        """Return the recipe that the trained encoder is used by."""
        variant = self.variant(family)
        denoise = variant.denoise_at_test if self.keeps_head and settings.denoising else "none"
        if denoise != "none" and settings.bias_positions == "code":
            denoise += ":code"
        return Recipe(
            backbone=backbone,
            prompt=variant.prompts(settings)[0],
            pooling=self.pooling,
            transforms=(f"projection:{variant.head}",) if self.keeps_head else (),
            denoise=denoise,
        ).explicit()

    def transfer_recipe(self, recipe: Recipe) -> Recipe | None:
        """Return the recipe of transfer tasks, where it is another one than ``recipe``, the trained encoder's."""
        plain = recipe.replace(transforms=(), denoise="none")
        return plain if self.plain_transfer and plain != recipe else None

    def selecting(self, recipe: Recipe, settings: TrainingSettings) -> Recipe:
        """Return the recipe that the development score is taken by (``selection``)."""
        if settings.selection == "test":
            return recipe
        denoise = "hidden" if self.denoised and recipe.denoise == "none" else recipe.denoise
        return recipe.replace(denoise=denoise, period=False)

    def baseline(self, backbone: str, family: str, settings: TrainingSettings) -> Recipe:
        """Return the untrained encoder that a run is measured against: the same without anything learned."""
        words = self.variant(family).templates(settings)[0] or SLOT
        return Recipe(backbone=backbone, prompt=words, pooling=self.pooling)
