"""The arguments of a training, and the settings that follow before anything is loaded.

The first part finds a run's initial settings on a backbone: their source, and how they differ from
the paper's. The second part is ``TrainConfig``, all arguments of ``train``.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.by_name import shape_of
from promptcli.backbones.published_backbones import PUBLISHED, Shape
from promptcli.data.input_files import split_columns
from promptcli.data.sources import TrainingData, is_sources
from promptcli.data.tasks import DevelopmentTask
from promptcli.errors import UsageError, did_you_mean
from promptcli.models.loading import open_registry
from promptcli.notes import typed_command
from promptcli.recipe import Recipe, last_part
from promptcli.settings import BARE, PAPER, typed_settings
from promptcli.training.methods import METHODS, find_method
from promptcli.training.methods.method import ConfiguredMethod, Method, TrainingSettings

#: Source of a run's initial settings, if they are not published.
FOUND = f"found on {BARE.backbone}"
OF_METHOD = "the method's own"  #: for a method without published settings

#: Settings that change where and how a run computes, not its result.
_COMPUTING = ("seed", "chunk_tokens", "gradient_caching", "compile")


@dataclass(frozen=True)
class SettingsInForce:
    """A method's settings on a backbone, their source, and the names of the given ones."""

    method: Method
    settings: TrainingSettings
    source: str  #: ``published for BACKBONE``, ``FOUND`` or ``OF_METHOD``
    backbone: str  #: for which the settings are published or found
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def changed(self, given: Mapping[str, Any]) -> "SettingsInForce":
        """Return a copy with the given settings.

        Raises:
            UsageError: The method has no such setting, or the value is not allowed.
        """
        known = vars(self.settings)
        for name in given:
            if name not in known:
                method = self.method.name
                raise UsageError(
                    f"method {method} has no such setting; `promptcli train {method} --dry-run`"
                    f" lists all{did_you_mean(name, known)}",
                    parameter=name,
                )
        return dataclasses.replace(self, settings=self.settings.replace(**given), given=given)

    def summary(self) -> str:
        """Return one line: the source of the settings, and the given ones."""
        line = f"settings of {self.method.name}: {self.source}"
        return f"{line}; given: {', '.join(typed_settings(self.given))}" if self.given else line

    def record(self) -> dict[str, Any]:
        """Return the settings as a model's record keeps them, JSON-ready."""
        return {
            "settings": dataclasses.asdict(self.settings),
            "preset": {"source": self.source, "backbone": self.backbone},
            "differs_from_paper": differences_from_paper(self.method, self.settings, self.backbone),
        }


def preset_for(
    method: Method, backbone: str, *, paper: bool = False, shape: Shape | None = None
) -> SettingsInForce:
    """Return a method's default settings for a backbone.

    Settings found on ``mini-bert`` apply to backbones of its shape. Any other backbone takes the
    published settings for its name, else for its shape, else for the method's first backbone.
    ``paper`` adds the choices that made the printed figures. ``shape`` is looked up if None.

    Raises:
        NotFoundError: A backbone of the hub that is not downloaded yet.
    """
    if not method.paper:
        return SettingsInForce(method, method.small, OF_METHOD, "")
    whose = backbone
    if backbone not in method.paper or Path(backbone).is_dir():  # a folder may hold anything
        shape = shape or shape_of(backbone)
        if is_minis(shape) and not paper:
            return SettingsInForce(method, method.small, FOUND, method.base)
        whose = _published_like(method, shape)
    settings = method.published(whose) if paper else method.paper[whose]
    return SettingsInForce(method, settings, f"published for {whose}", whose)


def shape_on(backbone: Backbone) -> Shape:
    """Return the shape of an opened backbone."""
    return Shape(
        backbone.provenance.family,
        backbone.width,
        backbone.n_layers,
        backbone.n_heads,
        len(backbone.word_embeddings),
    )


def is_minis(shape: Shape) -> bool:
    """Return whether a shape equals that of ``mini-bert``."""
    return shape == shape_of(BARE.backbone)


def _published_like(method: Method, shape: Shape) -> str:
    """Return the method's published backbone of this shape, preferably of this vocabulary too; else
    the method's first.
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
    whose = backbone if backbone in method.paper else method.base
    paper = vars(method.paper[whose])
    program = vars(method.published(whose))
    return [
        {"setting": field, "value": value, "paper": paper[field]}
        for field, value in vars(settings).items()
        if field not in _COMPUTING and value not in (paper[field], program[field])
    ]


Setting = str | int | float | bool | tuple[str, ...]  #: a value of a setting

#: Fields of the call, not of the run: ``resume`` takes them from the call.
_OF_CALL = ("name", "device", "resume", "force")
#: Fields that name files; a resumed run finds them from any working folder.
_FILES = ("data", "on", "tests", "data_dir", "backbone")
_IN_MEMORY = {"in_memory": True}  #: in a run's folder, instead of data without a file


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
    command: str = dataclasses.field(default_factory=typed_command)

    def document(self) -> dict[str, Any]:
        """Return the arguments as the folder of a run keeps them, JSON-ready."""
        document = {name: getattr(self, name) for name in _OF_RUN}
        for name in ("data", "on", "data_dir"):
            document[name] = _kept(document[name])
        return {**document, "folder": os.getcwd()}

    def resumed(self, stored: Mapping[str, Any]) -> "TrainConfig":
        """Return the arguments of an unfinished run.

        If the call names a method, its own settings are used; ``Run.identity`` later checks that
        they match the stored run.
        """
        if self.method:
            began_with = {field: stored[field] for field in ("command", "dtype", "threads")}
            return dataclasses.replace(self, **began_with)
        self.check_names_a_run()
        began = _with_tuples({name: stored[name] for name in _OF_RUN})
        for field in _FILES:
            began[field] = _located(began[field], Path(stored["folder"]))
        for field, value in began.items():
            if value == _IN_MEMORY:
                raise UsageError(
                    "was in memory in this run, not in a file; give it again, with the method"
                    " and all other options",
                    parameter=field,
                )
        began["settings"] = _with_tuples(began["settings"])
        if isinstance(began["data"], tuple):
            began["data"] = list(map(Path, began["data"]))
        return dataclasses.replace(self, **began)

    def check_names_a_run(self) -> None:
        """Refuse other arguments beside the name of a run if no method is given: the run has them
        all.
        """
        given = {**self.settings, **{name: getattr(self, name) for name in _OF_RUN}}
        for field, value in given.items():
            if value and field != "command":
                raise UsageError(
                    "a resumed run keeps its settings; leave it out, or also give the method",
                    parameter=field,
                )

    @property
    def form(self) -> Method:
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
        for form in filter(None, METHODS[self.form.name]):
            try:
                self.in_force(form)
                return
            except UsageError as error:
                refusals.append(error)
        raise refusals[0]

    @property
    def backbone_name(self) -> str:
        """The given backbone, else that of the model that the run starts from, else a default."""
        if self.backbone:
            return self.backbone
        if self.start_recipe is not None:
            return self.start_recipe.backbone
        if self.paper:
            return PAPER.backbone if PAPER.backbone in self.form.paper else self.form.base
        return BARE.backbone

    @property
    def start_recipe(self) -> Recipe | None:
        """The recipe of the model that the run starts from."""
        return open_registry().card(self.start).recipe if self.start else None

    @property
    def source(self) -> TrainingData:
        """The given data, or the default."""
        if self.data is not None:
            return self.data
        if not self.paper:
            return BARE.corpus
        return "nli_for_simcse" if self.supervised else PAPER.corpus

    @property
    def development(self) -> DevelopmentTask | str | Path:
        """The graded pairs or queries that choose the best checkpoint."""
        if self.on:
            return self.on
        if self.paper or self.data_dir is not None:
            return PAPER.development
        return BARE.development

    def in_force(self, method: Method) -> SettingsInForce:
        """Return the settings of a form of the method: unsupervised or supervised."""
        preset = preset_for(method, self.backbone_name, paper=self.paper)
        if self.start_recipe is not None and not self.paper and preset.settings.keep_head:
            names = [each.name for each in self.start_recipe.parts.transforms]
            if "projection" not in names:  # a new head would unlearn what the start knows
                preset = preset.changed({"keep_head": False})
        return preset.changed(self.settings)

    def configured_method(
        self, found: SettingsInForce, backbone: str, family: str
    ) -> ConfiguredMethod:
        """Return how the method reads sentences on a backbone: as the start model does, unless the
        papers' way is requested.
        """
        configured = ConfiguredMethod(found.method, found.settings, backbone, family)
        start = self.start_recipe
        return configured if start is None or self.paper else configured.like(start)


#: Fields of the run, which its folder keeps.
_OF_RUN = [item.name for item in dataclasses.fields(TrainConfig) if item.name not in _OF_CALL]


def _kept(data: Any) -> Any:
    """Return the name of data, JSON-ready."""
    if is_sources(data):
        kept = list(map(_kept, data))
        return _IN_MEMORY if _IN_MEMORY in kept else kept
    if isinstance(data, str | Path):
        return str(data)
    return None if data is None else _IN_MEMORY


def _located(name: Any, folder: Path) -> Any:
    """Return the path of a file found here or in ``folder``; other names are returned unchanged."""
    if isinstance(name, tuple):
        return tuple(_located(each, folder) for each in name)
    if not isinstance(name, str) or os.path.exists(split_columns(name)[0]):
        return name
    there = str(folder / name)
    return there if os.path.exists(split_columns(there)[0]) else name


def _with_tuples(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values with tuples for lists, as a config has them."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()
    }
