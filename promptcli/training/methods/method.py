"""A training method as plain data: settings, prompts of the views, what learns, head, objective."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from promptcli.backbones.families import FAMILIES
from promptcli.errors import UsageError, did_you_mean
from promptcli.recipe import SLOT, Recipe
from promptcli.training.methods.training_settings import Templates, TrainingSettings

_BASE = "bert-base-uncased"


@dataclass(frozen=True)
class Variant:
    """What a method does for one family of backbones."""

    templates: Templates = (SLOT, SLOT)  #: one for each view; the first is also the test's
    head: str | None = (
        "tanh"  #: projection while training (``tanh``, ``mlm``); None: the vectors themselves
    )
    #: Where h - h_hat is taken in the encoder that keeps the head: before it (``hidden``), after it
    #: (``head``), or nowhere (``none``).
    denoising_place: str = "none"
    pooling: str | None = None  #: of the sentence vector, if it differs from the method's

    def prompts(self, settings: TrainingSettings, *, training: bool = False) -> Templates:
        """Return the prompts of the views, which the published code may write in another way in
        training.
        """
        templates = settings.templates(self.templates)
        if training:
            templates = tuple(map(settings.in_training, templates))
        return tuple(map(settings.prompt, templates))


def _with_first(templates: Templates, prompt: str) -> Templates:
    """Return templates whose first is ``prompt``; two that are different stay so."""
    first = templates[0]
    exchanged = {first: prompt, prompt: first}
    return tuple(exchanged.get(template, template) for template in templates)


@dataclass(frozen=True)
class Method:
    """A training method of a paper, unsupervised or supervised."""

    name: str  #: as typed
    source: str  #: paper and section
    pooling: str  #: of the sentence vector at test
    #: ``backbone`` if it is tuned, ``adapter`` (LoRA); ``prompt``, ``pooling``, ``classifier`` are
    #: named only: as a head they always learn.
    learns: tuple[str, ...]
    #: settings for ``mini-bert``, found on development pairs (``training.presets``)
    small: TrainingSettings
    paper: Mapping[str, TrainingSettings]  #: the published settings by backbone
    variants: Mapping[str, Variant]  #: by family; ``causal``, and ``*`` for all that are not named
    #: settings of the published program that differ
    program: Mapping[str, Any] = field(default_factory=dict)
    objective: str = "contrastive"  #: a name of ``training.objectives.OBJECTIVES``
    plain_transfer: bool = False  #: transfer tasks take the vectors before head and denoising
    #: ``max_length`` counts [CLS] and [SEP]; else the sentence's own tokens only
    counts_specials: bool = True
    text_rule: str | None = None  #: of the sentence's characters at test
    training_text_rule: str | None = None  #: the same in training
    #: whether a missing period is added at test; None: the recipe's default
    period: bool | None = None
    mlm_decay: float = 1.0  #: factor of the masked-LM loss's weight every 100 steps
    training_pooling: str | None = None  #: of the sentence vector in training, if it differs
    untrained_pooling: str | None = None  #: of the untrained encoder, if pooling itself is learned
    #: the only pooling that its objective can train, if there is one only
    needs_pooling: str | None = None

    @property
    def base(self) -> str:
        """The backbone whose published settings hold for backbones without published ones.

        "" without any.
        """
        return _BASE if _BASE in self.paper else next(iter(self.paper), "")

    def published(self, backbone: str) -> TrainingSettings:
        """Return the published settings of a backbone, with the choices that made the printed
        figures.
        """
        return self.paper[backbone].as_published().replace(**self.program)

    def changed(self, settings: TrainingSettings, changes: Mapping[str, Any]) -> TrainingSettings:
        for name in changes:
            if name not in vars(settings):
                own = ", ".join(settings.own()) or "none"
                near = did_you_mean(name, vars(settings))
                raise UsageError(
                    f"method {self.name} has no such setting; its own settings: {own}{near}",
                    parameter=name,
                )
        return settings.replace(**changes)

    def starting_as(self, read: Recipe, settings: TrainingSettings, family: str) -> "Method":
        """Return the method on the template and pooling of the model that it starts from, so that
        nothing is unlearned.

        A template that the settings give wins. So do the method's own if it trains an adapter,
        whose papers start from another template, or if its objective cannot train the model's
        pooling.
        """
        trainable = self.needs_pooling in (None, read.pooling)
        if settings.template or not trainable or "backbone" not in self.learns:
            return self
        variant = self.variant(family)
        own = self.pooling_of(family, settings)
        as_at_test = read.text_rule == self.text_rule
        return replace(
            self,
            variants={
                "*": replace(
                    variant, templates=_with_first(variant.templates, read.prompt), pooling=None
                )
            },
            pooling=read.pooling,
            training_pooling=self.training_pooling if read.pooling == own else None,
            counts_specials=self.counts_specials and read.prompt == SLOT,
            period=read.period,
            text_rule=read.text_rule,
            training_text_rule=self.training_text_rule if as_at_test else None,
        )

    def variant(self, family: str) -> Variant:
        kind = "causal" if family in FAMILIES and FAMILIES[family].causal else "*"
        return self.variants.get(family) or self.variants.get(kind) or self.variants["*"]

    def pooling_of(self, family: str, settings: TrainingSettings) -> str:
        return settings.pooling(self.variant(family).pooling or self.pooling)

    def head(self, family: str, settings: TrainingSettings) -> str | None:
        """Return the head while training.

        None that would be dropped if the first dimensions of vectors have a loss.
        """
        head = self.variant(family).head
        return head if settings.keep_head or not settings.dims else None

    def recipe(self, backbone: str, family: str, settings: TrainingSettings) -> Recipe:
        variant = self.variant(family)
        denoise = "none"
        kept = settings.keep_head and variant.head is not None
        if kept and settings.denoising:
            denoise = settings.denoise(variant.denoising_place)
        return Recipe(
            backbone=backbone,
            prompt=variant.prompts(settings)[0],
            pooling=self.pooling_of(family, settings),
            text_rule=self.text_rule,
            period=self.period,
            transforms=(f"projection:{variant.head}",) if kept else (),
            denoise=denoise,
            dims=settings.widths,
        ).resolve()

    def transfer_recipe(self, recipe: Recipe) -> Recipe | None:
        """Return the recipe of transfer tasks if it differs from ``recipe``, the trained
        encoder's.
        """
        read = recipe.replace(transforms=(), denoise="none") if self.plain_transfer else recipe
        return None if read == recipe else read

    def selecting(self, recipe: Recipe, settings: TrainingSettings, family: str) -> Recipe:
        """Return the recipe of the development score: the test's, or the code's, denoised and
        without period rule.
        """
        if settings.selection == "test":
            return recipe
        denoise = recipe.denoise
        if settings.moved_bias and settings.denoising and denoise == "none":
            denoise = settings.denoise("hidden")
        prompt, *_ = self.variant(family).prompts(settings, training=True)
        return recipe.replace(prompt=prompt, denoise=denoise, period=False)

    def baseline(self, backbone: str, family: str, settings: TrainingSettings) -> Recipe:
        """Return the untrained encoder that a run is measured against: the same without anything
        learned.
        """
        words = settings.templates(self.variant(family).templates)[0]
        pooling = self.untrained_pooling or self.pooling_of(family, settings)
        return Recipe(
            backbone=backbone,
            prompt=words,
            period=self.period,
            pooling=pooling,
            text_rule=self.text_rule,
        )
