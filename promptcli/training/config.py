"""What a training is asked for, and what follows from it before anything is loaded.

First the settings that a run begins with on a backbone: where each of them comes from, and how they
differ from the paper's. Then all that ``train`` is asked for.
"""

import dataclasses
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.by_name import shape_of
from promptcli.backbones.published_backbones import PUBLISHED, Shape
from promptcli.data.input_files import split_columns
from promptcli.data.sources import TrainingData, is_sources
from promptcli.data.tasks import DevelopmentTask
from promptcli.errors import UsageError
from promptcli.models.loading import open_registry
from promptcli.notes import typed_command
from promptcli.recipe import Recipe, last_part
from promptcli.settings import BARE, PAPER, typed_setting, typed_value
from promptcli.training.methods import METHODS, find_method
from promptcli.training.methods.method import Method, TrainingSettings

#: Where a setting comes from.
OF_PAPER = "paper"
OF_PROGRAM = "published program"  #: if it is not the paper's
FOUND = f"found on {BARE.backbone}"
OF_METHOD = "the method's own"  #: of a method that nothing is published for
GIVEN = "given"
OF_START = "the model that the run starts from"
DEFAULT = "default"  #: of promptcli: no paper says it

#: Settings that say where and how a run computes, not what.
_COMPUTING = ("seed", "chunk_tokens", "gradient_caching", "compile")
#: Settings of a preset that a note names, if the method has them.
_NAMED = ("batch_size", "learning_rate", "epochs", "temperature")


@dataclass(frozen=True)
class MethodPreset:
    """A method's settings for a backbone before anything is given."""

    settings: TrainingSettings
    source: str  #: ``OF_PAPER``, ``FOUND`` or ``OF_METHOD``
    backbone: str  #: whose settings they are: ``bert-base-uncased``


@dataclass(frozen=True)
class SettingsInForce:
    """The settings of a run, and their sources."""

    method: Method
    settings: TrainingSettings
    preset: MethodPreset
    sources: Mapping[str, str]  #: of every setting, in the order of the fields

    def summary(self) -> str:
        """Return one line: whose settings they are, and which were given."""
        given = [
            typed_setting(field, getattr(self.settings, field))
            for field, source in self.sources.items()
            if source == GIVEN
        ]
        line = f"settings of {self.method.name}: {self.preset_in_words()}"
        return f"{line}; given: {', '.join(given)}" if given else line

    def preset_in_words(self) -> str:
        """Return whose settings the run begins with, and the usual ones of them, each with the
        paper's if they differ.
        """
        preset = self.preset
        values = vars(preset.settings)
        published = vars(self.method.paper.get(preset.backbone, preset.settings))
        shown = []
        for field in _NAMED:
            if field in values:
                typed = typed_setting(field, values[field])
                if published[field] != values[field]:
                    typed += f", paper {typed_value(published[field])}"
                shown.append(typed)
        source = preset.source
        if source == OF_PAPER:
            source = f"published for {preset.backbone}"
        return f"{source} ({'; '.join(shown)})"

    def record(self) -> dict[str, Any]:
        """Return all settings and their sources as a model's record keeps them, JSON-ready."""
        preset = self.preset
        different = differences_from_paper(self.method, self.settings, preset.backbone)
        return {
            "settings": dataclasses.asdict(self.settings),
            "settings_from": dict(self.sources),
            "preset": {"source": preset.source, "backbone": preset.backbone},
            "differs_from_paper": different,
        }


def preset_for(
    method: Method, backbone: str, *, paper: bool = False, shape: Shape | None = None
) -> MethodPreset:
    """Return the settings that a method has for a backbone.

    Settings found on ``mini-bert`` are for backbones of its shape; all others have those of the
    published backbone of their name or their shape, or of the method's first. ``paper``: with the
    choices that made the printed figures. ``shape``: the backbone's, which is looked up if None.

    Raises:
        NotFoundError: A backbone of the hub that is not here yet.
    """
    if not method.paper:
        return MethodPreset(method.small, OF_METHOD, "")
    whose = backbone
    if backbone not in method.paper or Path(backbone).is_dir():  # a folder may hold anything
        shape = shape or shape_of(backbone)
        if is_minis(shape) and not paper:
            return MethodPreset(method.small, FOUND, method.base)
        whose = _published_like(method, shape)
    settings = method.published(whose) if paper else method.paper[whose]
    return MethodPreset(settings, OF_PAPER, whose)


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
    """Return whether a shape is that of ``mini-bert``."""
    return shape == shape_of(BARE.backbone)


def _published_like(method: Method, shape: Shape) -> str:
    """Return the method's published backbone of a shape, best with its vocabulary too, else the
    method's first.
    """
    same = []
    for name in method.paper:
        known = PUBLISHED.get(last_part(name))
        if known is None:
            continue
        if known.shape == shape:
            return name
        if dataclasses.replace(known.shape, vocabulary=shape.vocabulary) == shape:
            same.append(name)
    return next(iter(same), method.base)


def in_force(
    method: Method,
    backbone: str,
    changes: Mapping[str, Any],
    *,
    paper: bool = False,
    of_start: Mapping[str, Any] = MappingProxyType({}),
) -> SettingsInForce:
    """Return the settings of a run on a backbone.

    Args:
        method: The method, unsupervised or supervised.
        backbone: Name of the backbone.
        changes: The settings that are given.
        paper: Whether the choices behind the printed figures are asked for.
        of_start: Settings that follow from the model that the run starts from.

    Raises:
        UsageError: A setting that the method has not, or a value that is not allowed.
    """
    preset = preset_for(method, backbone, paper=paper)
    settings = method.with_changes(preset.settings.replace(**of_start), changes)
    sources = {item.name: _source(method, preset, item) for item in dataclasses.fields(settings)}
    sources |= dict.fromkeys(of_start, OF_START) | dict.fromkeys(changes, GIVEN)
    return SettingsInForce(method, settings, preset, sources)


def _source(method: Method, preset: MethodPreset, item: "dataclasses.Field[Any]") -> str:
    """Return where a preset's value of a setting comes from."""
    value = getattr(preset.settings, item.name)
    published = method.paper.get(preset.backbone)
    if item.name in _COMPUTING:
        return DEFAULT
    if published is None:
        return DEFAULT if value == item.default else preset.source
    if value == getattr(published, item.name):
        return OF_PAPER
    return OF_PROGRAM if preset.source == OF_PAPER else FOUND


def differences_from_paper(
    method: Method, settings: TrainingSettings, backbone: str
) -> list[dict[str, Any]]:
    """Return the settings that are neither the paper's for a backbone nor its program's, as
    ``setting``, ``value`` and ``paper``.

    Args:
        method: The method, unsupervised or supervised.
        settings: The settings of a run.
        backbone: A name of ``method.paper``; of any other it is the method's first.

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

#: Fields of the call, not of the run: ``resume`` takes them as they are given.
_OF_CALL = ("name", "device", "resume", "force", "skip_bad")
#: Fields that name files, which a resumed run finds from another folder, too.
_FILES = ("data", "on", "tests", "data_dir", "backbone")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """What ``train`` is asked for; the folder of a run keeps it, and ``resume`` reads it."""

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
    threads: int = 0  #: of the processor, with which the run began; 0: it is new
    group: str = ""  #: name of the several runs that it is one of
    command: str = dataclasses.field(default_factory=typed_command)

    def document(self) -> dict[str, Any]:
        """Return what the folder of a run keeps, JSON-ready.

        What is in memory is None, and named in ``in_memory``.
        """
        document = {item.name: _json_ready(getattr(self, item.name)) for item in _of_run()}
        if not (isinstance(self.data, str | Path) or is_sources(self.data)):
            document["data"] = None
        given = {"data": self.data, "on": self.on}
        in_memory = [
            name for name, value in given.items() if document[name] is None and value is not None
        ]
        return {**document, "folder": os.getcwd(), "in_memory": in_memory}

    def resumed(self, stored: Mapping[str, Any]) -> "TrainConfig":
        """Return what an unfinished run began with; what is given again must be the same, see
        ``Run.identity``.
        """
        for field in stored["in_memory"]:
            if not getattr(self, field):
                raise UsageError(
                    "that of this run was in memory, not in a file; give it again", parameter=field
                )
        changes: dict[str, Any] = {"command": stored["command"]}
        for item in _of_run():
            value = stored[item.name]
            if item.name in _FILES:
                value = _located(value, Path(stored["folder"]))
            if item.name == "settings":
                changes["settings"] = {name: _value(each) for name, each in value.items()}
                changes["settings"] |= self.settings
            elif not getattr(self, item.name):
                changes[item.name] = _value(value)
        if isinstance(changes.get("data"), tuple):
            changes["data"] = list(map(Path, changes["data"]))
        return dataclasses.replace(self, **changes)

    @property
    def form(self) -> Method:
        """The method before the data are read, whose columns tell whether it is supervised."""
        method = find_method(self.method, supervised=self.supervised)
        if self.paper and not method.paper:
            raise UsageError(
                f"no settings of {method.name} are published; leave it out", parameter="paper"
            )
        return method

    def check_settings(self) -> None:
        """Refuse settings that no form of the method takes."""
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
        """The backbone that is given, of the model that the run starts from, or a default."""
        if self.backbone:
            return self.backbone
        if self.start_recipe is not None:
            return self.start_recipe.backbone
        if self.paper:
            return PAPER.backbone if PAPER.backbone in self.form.paper else self.form.base
        return BARE.backbone

    @functools.cached_property
    def start_recipe(self) -> Recipe | None:
        """How the model that the run starts from reads sentences."""
        return open_registry().card(self.start).recipe if self.start else None

    @property
    def source(self) -> TrainingData:
        """The data that are given, or by default."""
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
        backbone = self.backbone_name
        of_start = {}
        if self.start_recipe is not None and not self.paper:
            has_head = any(each.name == "projection" for each in self.start_recipe.parts.transforms)
            if preset_for(method, backbone).settings.keep_head and not has_head:
                of_start["keep_head"] = False  # a new head would unlearn what the start knows
        return in_force(method, backbone, self.settings, paper=self.paper, of_start=of_start)

    def reading_like_start(self, method: Method, settings: TrainingSettings, family: str) -> Method:
        """Return the method as it reads sentences, which is as its start does, unless the papers'
        way is asked for.
        """
        if self.start_recipe is None or self.paper:
            return method
        return method.reading_like_start(self.start_recipe, settings, family)


def _of_run() -> "list[dataclasses.Field[Any]]":
    return [item for item in dataclasses.fields(TrainConfig) if item.name not in _OF_CALL]


def _json_ready(value: Any) -> Any:
    """Return a value as JSON keeps it, paths as text; None: it is in memory."""
    if isinstance(value, str | int | Mapping):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(item, str | Path) for item in value):
        return [str(item) for item in value]
    return None


def _value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _located(name: Any, folder: Path) -> Any:
    """Return the name of a file that is here, or that ``folder`` has, as a path; other names as
    they are.
    """
    if isinstance(name, list):
        return [_located(each, folder) for each in name]
    if not isinstance(name, str) or os.path.exists(split_columns(name)[0]):
        return name
    there = str(folder / name)
    return there if os.path.exists(split_columns(there)[0]) else name
