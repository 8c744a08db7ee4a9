"""A training method as plain data: its settings, the prompts of its views, its learned parts, its
head and its objective; and how it reads sentences on a backbone.

The settings of all methods come first, then groups of settings that several papers share. A field
has the metadata of ``settings.setting``, and ``published``: the value behind the printed figures,
if it differs from the default.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

from promptcli.backbones.families import FAMILIES
from promptcli.data.layouts import PAIRS, TRIPLETS
from promptcli.errors import UsageError, with_count
from promptcli.recipe import SLOT, Recipe
from promptcli.settings import check_bounds, list_of_names
from promptcli.settings import setting as setting  # for the methods

_BASE = "bert-base-uncased"
_PAIRED = f"pairs, columns {', '.join(PAIRS)}"
Templates = tuple[str, ...]  #: templates or prompts, one for each view
Layout = tuple[str, ...] | None  #: names of the columns of examples; None: sentences alone


class LoRA(NamedTuple):
    """The size of a low-rank adapter."""

    rank: int
    alpha: int
    dropout: float


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of every method; a method's own settings are fields of its subclass."""

    batch_size: int = setting(64, "Examples per step.", min=2)
    learning_rate: float = setting(
        3e-5, "Peak learning rate; see also `schedule`.", min=0, max=1_000_000
    )
    epochs: float = setting(1.0, "Passes over the data; see also `steps`.", above=0, max=1_000_000)
    steps: int = setting(0, "Steps of the run; 0: set by `epochs`.", min=0)
    eval_steps: int = setting(125, "Steps between two development scores.", min=1)
    max_length: int = setting(32, "Maximum tokens of a sentence; longer ones are cut.", min=3)
    dropout: float = setting(
        0.1, "Backbone dropout; it makes the two views differ.", min=0, max=0.9
    )
    weight_decay: float = setting(0.0, "Weight decay of AdamW.", min=0)
    warmup: float = setting(
        0.0, "Share of the steps in which the learning rate rises from 0.", min=0, max=1
    )
    warmup_steps: int = setting(0, "Warm-up in steps; 0: set by `warmup`.", min=0)
    schedule: str = setting(
        "linear",
        "Learning rate after the warm-up: linear (down to 0) or constant.",
        choices=("linear", "constant"),
    )
    optimizer: str = setting(
        "adamw",
        "adamw (torch), adamw-4.2.1 (transformers 4.2.1: epsilon before the bias correction), or"
        " adamw-uncorrected (epsilon 1e-6, no bias correction, no decay of biases and norms).",
        choices=("adamw", "adamw-4.2.1", "adamw-uncorrected"),
        published="adamw-4.2.1",
    )
    scored: str = setting(
        "also-ends",
        "Steps with a development score: multiples of `eval_steps` and both ends, or the"
        " multiples alone, as in the published programs.",
        choices=("also-ends", "multiples"),
        published="multiples",
    )
    patience: int = setting(
        0, "Stop after N development scores in a row without improvement; 0: never.", min=0
    )
    drop_last: bool = setting(False, "Leave out the last batch of an epoch if it is short.")
    data_temperature: float = setting(
        1.0,
        "T: a data set of n rows is drawn in proportion to n^(1/T); 1: by size, 2: by square root.",
        min=1,
        max=1_000_000,
    )
    batches: str = setting(
        "mixed",
        "mixed, or similar-lengths (sorted within 32 batches, which saves padding).",
        choices=("mixed", "similar-lengths"),
    )
    seed: int = setting(42, "Random seed.", min=0)
    chunk_tokens: int = setting(0, "Padded tokens per forward pass; 0: set by the device.", min=0)
    gradient_caching: bool = setting(
        False, "Keep one forward pass's activations at a time, for batches larger than memory."
    )
    compile: bool = setting(
        False, "Compile the backbone with torch.compile, for long runs on a GPU; slower on a CPU."
    )

    # Settings that only some methods have. Other code reads them from every method; here they are
    # off.
    dims = ""
    keep_head = False
    mine_margin = 0.0
    mlm_head = "trained"
    mlm_weight = 0.0
    selection = "test"
    template = Templates()

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.compile and self.gradient_caching:
            raise UsageError("excludes gradient_caching; give one of them", parameter="compile")

    @property
    def widths(self) -> tuple[int, ...]:
        """The widths in ``dims``, largest first."""
        return tuple(sorted({int(width) for width in self.dims.split(",") if width}, reverse=True))

    def named_models(self) -> dict[str, str]:
        """Return the models that settings name, e.g. a teacher, by the name of the setting.

        A required model that was not given is "".
        """
        models = {}
        for item in dataclasses.fields(self):
            model = getattr(self, item.name)
            if "model" in item.metadata and (model or "optional" not in item.metadata):
                models[item.name] = model
        return models

    @property
    def lora(self) -> LoRA | None:
        """The low-rank adapter that the method trains."""
        return None

    def denoise(self, place: str) -> str:
        """Return how a recipe writes that h_hat is subtracted at a place: before or after the head.

        ``none`` if the method does not denoise, or denoises in a way that no recipe has.
        """
        return "none"

    def check_layout(self, layout: Layout, *, has_negatives: bool, source: str) -> None:
        """Refuse examples, named ``source``, that lack what the settings need."""

    def total_steps(self, examples: int) -> int:
        """Return the steps of a run on a number of examples; refuse fewer examples than a batch."""
        size = self.batch_size
        if examples < size:
            raise UsageError(
                f"{with_count(examples, 'example')} are fewer than one batch of {size}; set"
                f" {examples}, or give more data",
                parameter="batch_size",
            )
        batches = examples // size if self.drop_last else math.ceil(examples / size)
        return self.steps or max(1, round(self.epochs * batches))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with ``changes``; an invalid value raises UsageError."""
        return dataclasses.replace(self, **changes)

    def templates(self, default: Templates) -> Templates:
        """Return the templates of the views; ``default`` has those of the method.

        The first template is also used at test.
        """
        return default

    def prompt(self, template: str) -> str:
        """Return the prompt of a template, as a recipe writes it."""
        return template

    def training_template(self, template: str) -> str:
        """Return a template as training and the published code's development score use it."""
        return template

    def pooling(self, default: str) -> str:
        """Return the pooling; ``default`` is that of the method."""
        return default


@dataclass(frozen=True)
class InBatchSettings(TrainingSettings):
    """Settings of losses over the cosines of a batch, with hard negatives from the data or from a
    model.
    """

    mine: str = setting(
        "",
        "Model that chooses a hard negative for each pair that has none.",
        model=True,
        optional=True,
    )
    mine_guide: str = setting(
        "",
        "Model that rejects false negatives as too near. Default: `mine`.",
        model=True,
        optional=True,
    )
    mine_margin: float = setting(
        0.05,
        "Least cosine difference between the positive and a hard negative.",
        min=0,
        max=2,
    )
    temperature: float = setting(0.05, "Temperature of the contrastive loss.", min=1e-4)
    temperature_rate: float = setting(
        0.0,
        "Peak learning rate of the temperature, which starts at `temperature`, e.g. 1e-3; 0:"
        " fixed.",
        min=0,
        max=1,
    )

    def check_layout(self, layout: Layout, *, has_negatives: bool, source: str) -> None:
        if self.mine and layout not in (PAIRS, TRIPLETS):
            raise UsageError(f"needs {_PAIRED}; {source} has none", parameter="mine")


@dataclass(frozen=True)
class ContrastiveSettings(InBatchSettings):
    """Settings of the ``contrastive`` objective."""

    mask_duplicates: bool = setting(
        True, "Equal sentences of a batch are not negatives.", published=False
    )
    mask_false: str = setting(
        "none",
        "Sentences nearer than the positive are not negatives, by the cosines of"
        " the model itself (self) or of `mask-guide` (guide); none: all are negatives.",
        choices=("none", "self", "guide"),
    )
    mask_guide: str = setting("", "Model for mask-false=guide.", model=True, optional=True)
    mask_margin: float = setting(
        0.1, "Cosine difference from which mask-false applies; GISTEmbed has 0.", min=0, max=2
    )
    hinge_weight: float = setting(
        0.0,
        "Weight of the hinge between the positive and the nearest negative, for data with hard"
        " negatives (PromCSE: 10).",
        min=0,
    )
    hinge_margin: float = setting(0.2, "Margin of the hinge, a cosine difference.", min=0, max=2)
    keep_head: bool = setting(
        False,
        "Whether the head stays at test time, as in the papers' supervised runs; else it is used in"
        " training only.",
    )
    dims: str = setting(
        "",
        "Widths at which the loss is added, e.g. 256,128,64; `dim` may later cut vectors"
        " to them (Matryoshka).",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(width.isdecimal() and int(width) for width in self.dims.split(",") if self.dims):
            raise UsageError(
                f"{self.dims!r} is not allowed; give widths, e.g. 256,128,64", parameter="dims"
            )

    def check_layout(self, layout: Layout, *, has_negatives: bool, source: str) -> None:
        super().check_layout(layout, has_negatives=has_negatives, source=source)
        is_guided = self.mask_false == "guide"
        if self.hinge_weight and not (has_negatives or self.mine):
            raise UsageError(
                f"needs hard negatives, columns {', '.join(TRIPLETS)}; {source} has none; mine"
                " finds some for pairs",
                parameter="hinge_weight",
            )
        if is_guided and not self.mask_guide:
            raise UsageError("is missing; name the model that guides", parameter="mask_guide")
        if self.mask_guide and not is_guided:
            raise UsageError("requires mask_false=guide", parameter="mask_guide")
        if is_guided and layout not in (PAIRS, TRIPLETS):
            raise UsageError(
                f"guide needs {_PAIRED}, but {source} has none; set self", parameter="mask_false"
            )


@dataclass(frozen=True)
class TemplateSettings(TrainingSettings):
    """Settings of methods with a textual template."""

    most_templates: ClassVar[int] = 2  #: largest number of templates

    template: tuple[str, ...] = setting(
        (), "Template with [X] and [MASK], or a template's name; give a second for the other view."
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "template", tuple(list_of_names(self.template)))
        super().__post_init__()
        count = len(self.template)
        if count > self.most_templates:
            raise UsageError(
                f"given {count} times; there are {self.most_templates} views", parameter="template"
            )

    def templates(self, default: Templates) -> Templates:
        """Return the given templates, else the method's.

        A single template is used for both views.
        """
        templates = self.template or default
        return templates[0], templates[min(1, len(templates) - 1)], *(templates[2:] or default[2:])


@dataclass(frozen=True)
class MaskedLMSettings(TrainingSettings):
    """Settings of methods with an optional masked-LM loss (DCPCSE 3.3; SimCSE)."""

    mlm_weight: float = setting(
        0.0, "Initial weight of a masked-LM loss; 0: no such loss.", min=0, max=1
    )
    mlm_head: str = setting(
        "trained",
        "Masked-LM head: trained (the code) or frozen (the paper).",
        choices=("trained", "frozen"),
    )


@dataclass(frozen=True)
class Variant:
    """A method's templates and head for one family of backbones."""

    templates: Templates = (SLOT, SLOT)  #: one per view; the first is also used at test
    head: str | None = "tanh"  #: projection in training: ``tanh``, ``mlm``; None: no projection
    #: Where h - h_hat is taken in the encoder that keeps the head: before it (``hidden``), after it
    #: (``head``), or nowhere (``none``).
    denoising_place: str = "none"
    pooling: str | None = None  #: pooling of the sentence vector, if it differs from the method's


@dataclass(frozen=True, kw_only=True)
class Method:
    """A training method of a paper, unsupervised or supervised."""

    name: str  #: as typed
    source: str  #: paper and section
    pooling: str  #: pooling of the sentence vector at test
    #: ``backbone`` if it is tuned, ``adapter`` for LoRA, ``pooling`` if the pooling learns.
    #: ``prompt`` and ``classifier`` are for display.
    learns: tuple[str, ...] = ("backbone",)
    #: settings for ``mini-bert``, found on development pairs (``training.config``)
    mini_bert_settings: TrainingSettings
    paper: Mapping[str, TrainingSettings]  #: the published settings by backbone
    variants: Mapping[str, Variant]  #: by family; ``causal``, and ``*`` for all others
    #: settings of the published program that differ
    program_settings: Mapping[str, Any] = field(default_factory=dict)
    objective: str = "contrastive"  #: a name of ``training.objectives.OBJECTIVES``
    plain_transfer: bool = False  #: transfer tasks take the vectors before head and denoising
    #: whether ``max_length`` counts [CLS] and [SEP], or the sentence's tokens only
    counts_specials: bool = True
    text_rule: str | None = None  #: rule for the sentence's characters at test
    training_text_rule: str | None = None  #: the rule in training
    #: whether a missing period is added at test; None: the recipe's default
    period: bool | None = None
    mlm_decay: float = 1.0  #: factor of the masked-LM loss's weight every 100 steps
    training_pooling: str | None = None  #: pooling in training, if it differs
    #: the only pooling that its objective can train, if any
    needs_pooling: str | None = None

    @property
    def fallback_backbone(self) -> str:
        """The backbone whose published settings apply to backbones without published ones.

        Empty if no settings are published.
        """
        return _BASE if _BASE in self.paper else next(iter(self.paper), "")

    def published(self, backbone: str) -> TrainingSettings:
        """Return the published settings of a backbone, with the choices that made the printed
        figures.
        """
        settings = self.paper[backbone]
        choices = {
            item.name: item.metadata["published"]
            for item in dataclasses.fields(settings)
            if "published" in item.metadata
        }
        return settings.replace(**{**choices, **self.program_settings})

    def transfer_recipe(self, recipe: Recipe) -> Recipe | None:
        """Return the recipe of transfer tasks if it differs from the trained ``recipe``."""
        if not self.plain_transfer:
            return None
        plain = recipe.replace(transforms=(), denoise="none")
        return None if plain == recipe else plain


@dataclass(frozen=True)
class ConfiguredMethod:
    """How a method with its settings reads sentences on a backbone."""

    method: Method
    settings: TrainingSettings
    backbone: str  #: its name
    family: str  #: of the backbone

    @property
    def variant(self) -> Variant:
        """The method's variant for the family."""
        family = self.family
        variants = self.method.variants
        kind = "causal" if family in FAMILIES and FAMILIES[family].causal else "*"
        return variants.get(family) or variants.get(kind) or variants["*"]

    @property
    def pooling(self) -> str:
        """The pooling of the sentence vector at test."""
        return self.settings.pooling(self.variant.pooling or self.method.pooling)

    @property
    def head(self) -> str | None:
        """The head in training; None if there is none.

        A head that is dropped after training is left out if the first dimensions of the vectors
        have a loss, because the loss would be that of the head's output.
        """
        head = self.variant.head
        return head if self.settings.keep_head or not self.settings.dims else None

    def prompts(self, *, training: bool = False) -> Templates:
        """Return the prompts of the views; the published code may write them differently in
        training.
        """
        settings = self.settings
        templates = settings.templates(self.variant.templates)
        if training:
            templates = tuple(map(settings.training_template, templates))
        return tuple(map(settings.prompt, templates))

    @property
    def recipe(self) -> Recipe:
        """The recipe of the trained encoder."""
        method = self.method
        settings = self.settings
        head = self.variant.head
        keeps_head = settings.keep_head and head is not None
        return Recipe(
            backbone=self.backbone,
            prompt=self.prompts()[0],
            pooling=self.pooling,
            text_rule=method.text_rule,
            period=method.period,
            transforms=(f"projection:{head}",) if keeps_head else (),
            denoise=settings.denoise(self.variant.denoising_place) if keeps_head else "none",
            dims=settings.widths,
        ).resolve()

    @property
    def development_recipe(self) -> Recipe:
        """The recipe of the development score: the recipe at test, or that of the published code,
        which denoises and has no period rule.
        """
        recipe = self.recipe
        if self.settings.selection == "test":
            return recipe
        denoise = recipe.denoise
        if denoise == "none":
            denoise = self.settings.denoise("hidden")
        prompt, *_ = self.prompts(training=True)
        return recipe.replace(prompt=prompt, denoise=denoise, period=False)

    @property
    def untrained_recipe(self) -> Recipe:
        """The recipe of the untrained reference, without learned parts."""
        method = self.method
        pooling = self.pooling
        if "pooling" in method.learns:
            pooling = f"{pooling.partition('/')[0]}/avg"
        return Recipe(
            backbone=self.backbone,
            prompt=self.settings.templates(self.variant.templates)[0],
            period=method.period,
            pooling=pooling,
            text_rule=method.text_rule,
        )

    def like(self, start: Recipe) -> "ConfiguredMethod":
        """Return this method with the template and the pooling of the model that a run starts from,
        because other ones would unlearn what the model knows.

        A template in the settings has priority. The method's own template is also kept if the
        method trains an adapter (its papers start from another template), or if its objective
        cannot train the model's pooling.
        """
        method = self.method
        trainable = method.needs_pooling in (None, start.pooling)
        if self.settings.template or not trainable or "backbone" not in method.learns:
            return self
        first = self.variant.templates[0]
        # two different templates stay different
        exchanged = {first: start.prompt, start.prompt: first}
        templates = tuple(exchanged.get(text, text) for text in self.variant.templates)
        as_at_test = start.text_rule == method.text_rule
        like_start = dataclasses.replace(
            method,
            variants={"*": dataclasses.replace(self.variant, templates=templates, pooling=None)},
            pooling=start.pooling,
            training_pooling=method.training_pooling if start.pooling == self.pooling else None,
            counts_specials=method.counts_specials and start.prompt == SLOT,
            period=start.period,
            text_rule=start.text_rule,
            training_text_rule=method.training_text_rule if as_at_test else None,
        )
        return dataclasses.replace(self, method=like_start)
