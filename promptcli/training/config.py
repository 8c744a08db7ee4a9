"""What a training is asked for, and what follows from it before anything is loaded."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.data.input_files import split_columns
from promptcli.data.sources import TrainingData, is_sources
from promptcli.data.tasks import DevelopmentTask
from promptcli.errors import UsageError
from promptcli.models.loading import open_registry
from promptcli.notes import typed_command
from promptcli.recipe import Recipe
from promptcli.settings import BARE, PAPER
from promptcli.training.methods import METHODS, find_method
from promptcli.training.methods.method import Method, TrainingSettings
from promptcli.training.presets import SettingsInForce, in_force, preset_for

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

    def read_as_start(self, method: Method, settings: TrainingSettings, family: str) -> Method:
        """Return the method as it reads sentences, which is as its start does, unless the papers'
        way is asked for.
        """
        if self.start_recipe is None or self.paper:
            return method
        return method.starting_as(self.start_recipe, settings, family)


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
