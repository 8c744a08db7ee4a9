"""The settings that a run begins with on a backbone, where each of them comes from, and how they
differ from the paper's.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.by_name import shape_of
from promptcli.backbones.published_backbones import PUBLISHED, Shape
from promptcli.named_templates import last_part
from promptcli.settings import BARE, typed_setting, typed_value
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import TrainingSettings

#: Where a setting comes from.
PAPER = "paper"
PROGRAM = "published program"  #: if it is not the paper's
FOUND = f"found on {BARE.backbone}"
OWN = "the method's own"  #: of a method that nothing is published for
GIVEN = "given"
START = "the model that the run starts from"
DEFAULT = "default"  #: of promptcli: no paper says it

#: Settings that say where and how a run computes, not what.
_COMPUTING = ("seed", "chunk_tokens", "gradient_caching", "compile")
#: Settings of a preset that a note names, if the method has them.
_NAMED = ("batch_size", "learning_rate", "epochs", "temperature")
_MOST_GIVEN = 8  # settings that a note names of those given


@dataclass(frozen=True)
class MethodPreset:
    """A method's settings for a backbone before anything is given."""

    settings: TrainingSettings
    source: str  #: ``PAPER``, ``FOUND`` or ``OWN``
    backbone: str  #: whose settings they are: ``bert-base-uncased``


@dataclass(frozen=True)
class Difference:
    """A setting that is neither the paper's nor the published program's."""

    setting: str  #: the field's name
    value: Any
    paper: Any

    def __str__(self) -> str:
        name = self.setting.replace("_", "-")
        return f"{name} {typed_value(self.value)} (paper: {typed_value(self.paper)})"


@dataclass(frozen=True)
class SettingsInForce:
    """The settings of a run, and their sources."""

    method: Method
    settings: TrainingSettings
    preset: MethodPreset
    sources: Mapping[str, str]  #: of every setting, in the order of the fields

    @property
    def differences(self) -> list[Difference]:
        return differences_from_paper(self.method, self.settings, self.preset.backbone)

    def summary(self) -> str:
        """Return one line: whose settings they are, and which were given."""
        line = f"settings of {self.method.name}: {self.whose()}"
        fields = [field for field, source in self.sources.items() if source == GIVEN]
        if len(fields) > _MOST_GIVEN:
            line += f"; given: {len(fields)} settings"
        elif fields:
            typed = [typed_setting(field, getattr(self.settings, field)) for field in fields]
            line += f"; given: {', '.join(typed)}"
        return line

    def whose(self) -> str:
        """Return whose settings the run begins with, and the usual ones of them."""
        preset = self.preset
        values = vars(preset.settings)
        named = [field for field in _NAMED if field in values]
        if preset.source != PAPER:
            return f"{preset.source} ({_beside_the_paper(self.method, preset, named)})"
        settings = ", ".join(typed_setting(field, values[field]) for field in named)
        return f"published for {preset.backbone} ({settings})"

    def record(self) -> dict[str, Any]:
        """Return all settings and their sources as a model's record keeps them, JSON-ready."""
        return {
            "settings": dataclasses.asdict(self.settings),
            "settings_from": dict(self.sources),
            "preset": {"source": self.preset.source, "backbone": self.preset.backbone},
            "differs_from_paper": [dataclasses.asdict(each) for each in self.differences],
        }


def _beside_the_paper(method: Method, preset: MethodPreset, named: list[str]) -> str:
    """Return the preset's values, each with the paper's if they differ."""
    published = method.paper.get(preset.backbone)
    shown = []
    for field in named:
        value = getattr(preset.settings, field)
        typed = typed_setting(field, value)
        if published is not None and getattr(published, field) != value:
            typed += f", paper {typed_value(getattr(published, field))}"
        shown.append(typed)
    return "; ".join(shown)


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
        return MethodPreset(method.small, OWN, "")
    whose = _published_like(method, backbone, shape, any_shape=paper)
    if whose is None:
        return MethodPreset(method.small, FOUND, method.base)
    if paper:
        return MethodPreset(method.published(whose), PAPER, whose)
    return MethodPreset(method.paper[whose], PAPER, whose)


def shape_on(backbone: Backbone) -> Shape:
    """Return the shape of an opened backbone."""
    return Shape(
        backbone.provenance.family,
        backbone.width,
        backbone.n_layers,
        backbone.n_heads,
        len(backbone.token_rows),
    )


def is_minis(shape: Shape) -> bool:
    """Return whether a shape is that of ``mini-bert``."""
    return shape == shape_of(BARE.backbone)


def _published_like(
    method: Method, backbone: str, shape: Shape | None, *, any_shape: bool
) -> str | None:
    """Return the published backbone whose settings hold for another.

    None if those found on ``mini-bert`` do; ``any_shape``: they never do.
    """
    if backbone in method.paper and not Path(backbone).is_dir():  # which may hold anything
        return backbone
    shape = shape or shape_of(backbone)
    if not any_shape and is_minis(shape):
        return None
    published_of = {name: PUBLISHED.get(last_part(name)) for name in method.paper}
    shapes = {name: known.shape for name, known in published_of.items() if known is not None}
    any_vocabulary = dataclasses.replace(shape, vocabulary=None)
    for name, published in shapes.items():
        if published == shape:
            return name
    for name, published in shapes.items():
        if dataclasses.replace(published, vocabulary=None) == any_vocabulary:
            return name
    return method.base


def in_force(
    method: Method,
    backbone: str,
    changes: Mapping[str, Any],
    *,
    paper: bool = False,
    of_start: Mapping[str, Any] | None = None,
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
    settings = preset.settings.replace(**(of_start or {}))
    sources = {}
    for item in dataclasses.fields(settings):
        if item.name in changes:
            source = GIVEN
        elif item.name in (of_start or {}):
            source = START
        else:
            source = _source(method, preset, item)
        sources[item.name] = source
    return SettingsInForce(method, method.changed(settings, changes), preset, sources)


def _source(method: Method, preset: MethodPreset, item: "dataclasses.Field[Any]") -> str:
    """Return where a preset's value of a setting comes from."""
    value = getattr(preset.settings, item.name)
    published = method.paper.get(preset.backbone)
    if item.name in _COMPUTING:
        return DEFAULT
    if published is None:
        return DEFAULT if value == item.default else preset.source
    if value == getattr(published, item.name):
        return PAPER
    return PROGRAM if preset.source == PAPER else FOUND


def differences_from_paper(
    method: Method, settings: TrainingSettings, backbone: str
) -> list[Difference]:
    """Return the settings that are neither the paper's for a backbone nor its program's.

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
    paper = method.paper[whose]
    program = method.published(whose)
    found = []
    for item in dataclasses.fields(settings):
        value = getattr(settings, item.name)
        known = (getattr(paper, item.name), getattr(program, item.name))
        if item.name not in _COMPUTING and value not in known:
            found.append(Difference(item.name, value, known[0]))
    return found
