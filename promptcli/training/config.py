"""The arguments of a training run, and the method and settings derived from them before anything is
loaded.

``Preset`` holds a method's default settings for a backbone, ``TrainConfig`` all arguments of
``train``, and ``ConfiguredMethod`` a method with its settings on a backbone.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.families import FAMILIES
from promptcli.backbones.published_backbones import PUBLISHED, Shape, shape_of
from promptcli.data.input_files import split_columns
from promptcli.data.tasks import DevelopmentTask
from promptcli.data.training_data import TrainingData, is_sources
from promptcli.errors import UsageError, did_you_mean
from promptcli.models.loading import open_registry
from promptcli.notes import current_command
from promptcli.recipe import SLOT, Recipe, last_part
from promptcli.settings import BUILT_IN, PAPER, typed_settings
from promptcli.training.methods import METHODS, find_method
from promptcli.training.methods.method import Method, Templates, TrainingSettings, Variant

#: Source of a preset, if it is not published.
FOUND = f"found on {BUILT_IN.backbone}"
OF_METHOD = "the method's own"  #: for a method without published settings

#: Settings that change where and how a run computes, not its result.
_COMPUTING = ("seed", "chunk_tokens", "gradient_caching", "compile")


@dataclass(frozen=True)
class Preset:
    """A method's default settings for a backbone, and their source."""

    method: Method
    settings: TrainingSettings
    source: str  #: ``published for BACKBONE``, ``FOUND`` or ``OF_METHOD``
    backbone: str  #: for which the settings are published or found

    def override(self, given: Mapping[str, Any]) -> TrainingSettings:
        """Return the settings with the given ones.

        Raises:
            UsageError: The method has no such setting, or the value is not allowed.
        """
        names = vars(self.settings)
        for name in given:
            if name not in names:
                method = self.method.name
                raise UsageError(
                    f"method {method} has no such setting; `promptcli train {method} --dry-run`"
                    f" lists all{did_you_mean(name, names)}",
                    parameter=name,
                )
        return self.settings.replace(**given)

    def summary(self, given: Mapping[str, Any]) -> str:
        """Return one line: the source of the settings, and the given ones."""
        line = f"settings of {self.method.name}: {self.source}"
        return f"{line}; given: {', '.join(typed_settings(given))}" if given else line


def preset_for(
    method: Method, backbone: str, *, paper: bool = False, shape: Shape | None = None
) -> Preset:
    """Return a method's default settings for a backbone.

    Settings found on ``mini-bert`` apply to backbones of its shape. Any other backbone takes the
    published settings for its name, else for its shape, else for the method's first backbone.
    ``paper`` adds the choices that made the printed figures. ``shape`` is looked up if None.

    Raises:
        NotFoundError: A backbone of the hub that is not downloaded yet.
    """
    if not method.paper:
        return Preset(method, method.small, OF_METHOD, "")
    published = backbone
    if backbone not in method.paper or Path(backbone).is_dir():  # a folder may hold anything
        shape = shape or shape_of(backbone)
        if has_mini_bert_shape(shape) and not paper:
            return Preset(method, method.small, FOUND, method.base)
        published = _published_like(method, shape)
    settings = method.published(published) if paper else method.paper[published]
    return Preset(method, settings, f"published for {published}", published)


def family_of_name(backbone: str, method: Method) -> str:
    """Return the family of a backbone; a published name tells it without the network."""
    published = PUBLISHED.get(last_part(backbone))
    if published is not None and backbone in method.paper and not Path(backbone).is_dir():
        return published.shape.family
    return shape_of(backbone).family


def shape_of_loaded(backbone: Backbone) -> Shape:
    """Return the shape of an opened backbone."""
    return Shape(
        backbone.provenance.family,
        backbone.width,
        backbone.n_layers,
        backbone.n_heads,
        len(backbone.word_embeddings),
    )


def has_mini_bert_shape(shape: Shape) -> bool:
    """Return whether a shape equals that of ``mini-bert``."""
    return shape == shape_of(BUILT_IN.backbone)


def _published_like(method: Method, shape: Shape) -> str:
    """Return the method's published backbone of this shape, preferably with this vocabulary too;
    else the method's first backbone.
    """
    shapes = {
        name: PUBLISHED[last_part(name)].shape
        for name in method.paper
        if last_part(name) in PUBLISHED
    }
    same = [
        name
        for name, known in shapes.items()
        if dataclasses.replace(known, vocabulary=shape.vocabulary) == shape
    ]
    return max(same, key=lambda name: shapes[name] == shape, default=method.base)


def differences_from_paper(
    method: Method, settings: TrainingSettings, backbone: str
) -> list[dict[str, Any]]:
    """Return the settings that differ both from the paper's for a backbone and from its program's,
    as ``setting``, ``value`` and ``paper``.

    Args:
        method: The method, unsupervised or supervised.
        settings: The settings of a run.
        backbone: A name in ``method.paper``; any other name means the method's first.

    Returns:
        The differences in the order of the fields; none if nothing is published.
    """
    if not method.paper:
        return []
    published = backbone if backbone in method.paper else method.base
    paper = vars(method.paper[published])
    published_code = vars(method.published(published))
    return [
        {"setting": field, "value": value, "paper": paper[field]}
        for field, value in vars(settings).items()
        if field not in _COMPUTING and value not in (paper[field], published_code[field])
    ]


Setting = str | int | float | bool | tuple[str, ...]  #: a value of a setting

#: Fields of the call, not of the run: ``resume`` takes them from the call.
_OF_CALL = ("name", "device", "resume", "force")
#: Fields that name files; a resumed run finds them from any working folder.
_FILES = ("data", "on", "tests", "data_dir", "backbone")
_IN_MEMORY = {"in_memory": True}  #: what a run's folder has in place of data without a file


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The arguments of ``train``; the folder of a run keeps them, and ``resume`` reads them."""

    method: str = ""
    data: TrainingData | None = None
    backbone: str | None = None
    device: str | None = None
    dtype: str | None = None
    start: str | None = None
    name: str | None = None
    supervised: bool = False
    paper: bool = False
    on: DevelopmentTask | str | Path | None = None
    tests: tuple[str, ...] = ()
    data_dir: str | Path | None = None
    resume: bool = False
    force: bool = False
    report_to: tuple[str, ...] = ()
    csv: Mapping[str, str] | None = None
    skip_bad: bool = False
    settings: Mapping[str, Setting] = dataclasses.field(default_factory=dict)
    threads: int = 0  #: CPU threads at the start of the run; 0: a new run
    group: str = ""  #: name of the group of runs, if there are several
    command: str = dataclasses.field(default_factory=current_command)

    def document(self) -> dict[str, Any]:
        """Return the arguments as the folder of a run keeps them, JSON-ready."""
        document = {name: getattr(self, name) for name in _OF_RUN}
        for name in ("data", "on", "data_dir"):
            document[name] = _stored_name(document[name])
        return {**document, "folder": os.getcwd()}

    def resume_from(self, stored: Mapping[str, Any]) -> "TrainConfig":
        """Return the arguments of an unfinished run.

        If the call names a method, its own settings are used; ``Run.identity`` later checks that
        they match the stored run.
        """
        if self.method:
            unchanged = {field: stored[field] for field in ("command", "dtype", "threads")}
            return dataclasses.replace(self, **unchanged)
        self.check_names_a_run()
        arguments = _with_tuples({name: stored[name] for name in _OF_RUN})
        for field in _FILES:
            arguments[field] = _located(arguments[field], Path(stored["folder"]))
        for field, value in arguments.items():
            if value == _IN_MEMORY:
                raise UsageError(
                    "was in memory in this run, not in a file; give it again, with the method"
                    " and all other options",
                    parameter=field,
                )
        arguments["settings"] = _with_tuples(arguments["settings"])
        if isinstance(arguments["data"], tuple):
            arguments["data"] = list(map(Path, arguments["data"]))
        return dataclasses.replace(self, **arguments)

    def check_names_a_run(self) -> None:
        """Refuse arguments beside the name of a run if no method is given: the run has them all."""
        given = {**self.settings, **{name: getattr(self, name) for name in _OF_RUN}}
        for field, value in given.items():
            if value and field != "command":
                raise UsageError(
                    "a resumed run keeps its settings; leave it out, or also give the method",
                    parameter=field,
                )

    @property
    def provisional_method(self) -> Method:
        """The method before the data are read, whose columns decide whether it is supervised."""
        method = find_method(self.method, supervised=self.supervised)
        if self.paper and not method.paper:
            raise UsageError(
                f"{method.name} has no published settings; leave it out", parameter="paper"
            )
        return method

    def check_settings(self) -> None:
        """Refuse settings that neither form of the method has."""
        refusals = []
        for form in filter(None, METHODS[self.provisional_method.name]):
            try:
                self.settings_for(form)
                return
            except UsageError as error:
                refusals.append(error)
        raise refusals[0]

    def choose_backbone(self) -> str:
        """Return the name of the given backbone, else of the start model's, else a default."""
        if self.backbone:
            return self.backbone
        start = self.read_start_recipe()
        if start is not None:
            return start.backbone
        if self.paper:
            method = self.provisional_method
            return PAPER.backbone if PAPER.backbone in method.paper else method.base
        return BUILT_IN.backbone

    def read_start_recipe(self) -> Recipe | None:
        """Return the recipe of the model that the run starts from."""
        return open_registry().card(self.start).recipe if self.start else None

    @property
    def training_data(self) -> TrainingData:
        """The given data, or the default."""
        if self.data is not None:
            return self.data
        if not self.paper:
            return BUILT_IN.corpus
        return "nli_for_simcse" if self.supervised else PAPER.corpus

    @property
    def development(self) -> DevelopmentTask | str | Path:
        """The graded pairs or queries that choose the best checkpoint."""
        if self.on:
            return self.on
        if self.paper or self.data_dir is not None:
            return PAPER.development
        return BUILT_IN.development

    def preset(self, method: Method) -> Preset:
        """Return the default settings of a form of the method: unsupervised or supervised."""
        preset = preset_for(method, self.choose_backbone(), paper=self.paper)
        start = self.read_start_recipe()
        if start is None or self.paper or not preset.settings.keep_head:
            return preset
        names = [transform.name for transform in start.parts.transforms]
        if "projection" in names:
            return preset
        # a new head would unlearn what the start knows
        return dataclasses.replace(preset, settings=preset.settings.replace(keep_head=False))

    def settings_for(self, method: Method) -> TrainingSettings:
        """Return the settings in force of a form of the method: the given ones over the preset."""
        return self.preset(method).override(self.settings)

    def configure(
        self, method: Method, settings: TrainingSettings, backbone: str, family: str
    ) -> "ConfiguredMethod":
        """Return how the method reads sentences on a backbone: as the start model does, unless the
        papers' way is requested.
        """
        configured = ConfiguredMethod(method, settings, backbone, family)
        start = self.read_start_recipe()
        return configured if start is None or self.paper else configured.like(start)


#: Fields of the run, which its folder keeps.
_OF_RUN = [item.name for item in dataclasses.fields(TrainConfig) if item.name not in _OF_CALL]


def _stored_name(data: Any) -> Any:
    """Return the name of data, JSON-ready."""
    if is_sources(data):
        names = list(map(_stored_name, data))
        return _IN_MEMORY if _IN_MEMORY in names else names
    if isinstance(data, str | Path):
        return str(data)
    return None if data is None else _IN_MEMORY


def _located(name: Any, folder: Path) -> Any:
    """Return the path of a file found here or in ``folder``; other names are returned unchanged."""
    if isinstance(name, tuple):
        return tuple(_located(of_many, folder) for of_many in name)
    if not isinstance(name, str) or os.path.exists(split_columns(name)[0]):
        return name
    in_folder = str(folder / name)
    return in_folder if os.path.exists(split_columns(in_folder)[0]) else name


def _with_tuples(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values with tuples for lists, as a config has them."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }


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
        """The head in training.

        None if a head would be dropped although the first dimensions of the vectors have a loss.
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
            templates = tuple(map(settings.in_training, templates))
        return tuple(map(settings.prompt, templates))

    @property
    def recipe(self) -> Recipe:
        """The recipe of the trained encoder."""
        method = self.method
        settings = self.settings
        head = self.variant.head
        denoise = "none"
        keeps_head = settings.keep_head and head is not None
        if keeps_head and settings.denoising:
            denoise = settings.denoise(self.variant.denoising_place)
        return Recipe(
            backbone=self.backbone,
            prompt=self.prompts()[0],
            pooling=self.pooling,
            text_rule=method.text_rule,
            period=method.period,
            transforms=(f"projection:{head}",) if keeps_head else (),
            denoise=denoise,
            dims=settings.widths,
        ).resolve()

    @property
    def development_recipe(self) -> Recipe:
        """The recipe of the development score: the test's, or the code's, which denoises and has no
        period rule.
        """
        settings = self.settings
        recipe = self.recipe
        if settings.selection == "test":
            return recipe
        denoise = recipe.denoise
        if settings.moved_bias and settings.denoising and denoise == "none":
            denoise = settings.denoise("hidden")
        prompt, *_ = self.prompts(training=True)
        return recipe.replace(prompt=prompt, denoise=denoise, period=False)

    @property
    def untrained_recipe(self) -> Recipe:
        """The untrained reference: the same recipe without learned parts."""
        method = self.method
        return Recipe(
            backbone=self.backbone,
            prompt=self.settings.templates(self.variant.templates)[0],
            period=method.period,
            pooling=method.untrained_pooling or self.pooling,
            text_rule=method.text_rule,
        )

    def like(self, start: Recipe) -> "ConfiguredMethod":
        """Return this method with the template and pooling of the model that a run starts from, so
        that nothing is unlearned.

        A template in the settings has priority. The method's own template is also kept if the
        method trains an adapter (its papers start from another template), or if its objective
        cannot train the model's pooling.
        """
        method = self.method
        trainable = method.needs_pooling in (None, start.pooling)
        if self.settings.template or not trainable or "backbone" not in method.learns:
            return self
        templates = _with_first(self.variant.templates, start.prompt)
        as_at_test = start.text_rule == method.text_rule
        changed = dataclasses.replace(
            method,
            variants={"*": dataclasses.replace(self.variant, templates=templates, pooling=None)},
            pooling=start.pooling,
            training_pooling=method.training_pooling if start.pooling == self.pooling else None,
            counts_specials=method.counts_specials and start.prompt == SLOT,
            period=start.period,
            text_rule=start.text_rule,
            training_text_rule=method.training_text_rule if as_at_test else None,
        )
        return dataclasses.replace(self, method=changed)


def _with_first(templates: Templates, prompt: str) -> Templates:
    """Return templates whose first is ``prompt``; two different templates stay different."""
    first = templates[0]
    exchanged = {first: prompt, prompt: first}
    return tuple(exchanged.get(template, template) for template in templates)
