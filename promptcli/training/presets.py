"""The settings that a run begins with on a backbone, where each of them comes from, and how they
differ from the paper's.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.by_name import shape_of
from promptcli.backbones.published_backbones import PUBLISHED, Shape
from promptcli.named_templates import last_part
from promptcli.settings import BARE, typed_setting, typed_value
from promptcli.training.methods.method import Method, TrainingSettings

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
        line = f"settings of {self.method.name}: {self.whose()}"
        return f"{line}; given: {', '.join(given)}" if given else line

    def whose(self) -> str:
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
        if source == PAPER:
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
            "differs_from_paper": [vars(each) for each in different],
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
        return MethodPreset(method.small, OWN, "")
    whose = backbone
    if backbone not in method.paper or Path(backbone).is_dir():  # a folder may hold anything
        shape = shape or shape_of(backbone)
        if is_minis(shape) and not paper:
            return MethodPreset(method.small, FOUND, method.base)
        whose = _published_like(method, shape)
    settings = method.published(whose) if paper else method.paper[whose]
    return MethodPreset(settings, PAPER, whose)


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
    settings = method.changed(preset.settings.replace(**of_start), changes)
    sources = {item.name: _source(method, preset, item) for item in dataclasses.fields(settings)}
    sources |= dict.fromkeys(of_start, START) | dict.fromkeys(changes, GIVEN)
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
    paper = vars(method.paper[whose])
    program = vars(method.published(whose))
    return [
        Difference(field, value, paper[field])
        for field, value in vars(settings).items()
        if field not in _COMPUTING and value not in (paper[field], program[field])
    ]
