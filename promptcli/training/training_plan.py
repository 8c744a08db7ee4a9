"""What a training run is asked to do, as plain data. Knows nothing of torch: a dry run loads nothing."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from promptcli.data.sources import source_name
from promptcli.errors import UsageError
from promptcli.training.methods.method import Method
from promptcli.training.methods.training_settings import TrainingSettings


@dataclass(frozen=True)
class TrainingPlan:
    """What to train on what."""

    method: str  #: a name of ``METHODS``
    name: str  #: of the registry entry
    data: Any  #: what ``data.sources.training_examples`` takes
    #: Development task, and the SentEval folder it may need.
    on: str
    data_dir: Path | None = None
    tests: Sequence[str] = ()  #: tasks scored at the end; the test split of ``on`` where none is named
    backbone: str = "mini-bert"
    start: str | None = None  #: entry of the registry, on that backbone, that the run goes on from
    supervised: bool = False  #: pairs or triplets are wanted
    paper: bool = False  #: start from the published settings with the choices that made the printed figures
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)  #: changes of the settings
    #: Values to try by setting; every combination is run.
    sweep: Mapping[str, Sequence[Any]] = dataclasses.field(default_factory=dict)
    seeds: int | None = None  #: how many seeds, 0, 1, ...; None: the settings' one

    def settings(self, method: Method, width: int) -> TrainingSettings:
        """Return the settings in force on a backbone of that width; 0 where its settings are published.

        Raises:
            UsageError: ``paper`` without published settings, or a change that is not allowed.
        """
        if self.paper:
            check_published(method, self.backbone)
        base = method.published(self.backbone) if self.paper else method.settings(self.backbone, width)
        return method.changed(base, self.changes)

    def describe(self, method: Method, settings: TrainingSettings, family: str) -> dict[str, Any]:
        """Return what the plan would do, JSON-ready."""
        variant = method.variant(family)
        return {
            "method": method.name,
            "source": method.source,
            "backbone": self.backbone,
            "data": source_name(self.data),
            "chosen_by": self.on,
            "views": list(variant.prompts(settings)),
            "pooling": method.pooling_of(family, settings),
            "objective": method.objective,
            "learns": [*method.learns, *(["head"] if variant.head else [])],
            "head": variant.head and f"{variant.head}, {'kept' if method.keeps_head else 'while training only'}",
            "recipe": method.recipe(self.backbone, family, settings).to_dict(),
            **dataclasses.asdict(settings),
        }


def check_published(method: Method, backbone: str) -> None:
    """Refuse a backbone for which nothing is published.

    Raises:
        UsageError: The settings are not published.
    """
    if backbone not in method.paper:
        raise UsageError(
            f"--paper: no settings of {method.name} are published for backbone {backbone!r}; there are for:"
            f" {', '.join(method.paper)}"
        )
