"""A training job before anything heavy is loaded: what it leaves out is filled in, and its settings
are found.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from promptcli.data.sources import TrainingData
from promptcli.data.tasks import DevelopmentTask
from promptcli.errors import UsageError
from promptcli.models.loading import open_registry
from promptcli.notes import keyword
from promptcli.recipe import Recipe
from promptcli.settings import BARE, PAPER
from promptcli.training.methods import METHODS, find_method
from promptcli.training.methods.method import Method, keeps_head
from promptcli.training.methods.training_settings import TrainingSettings
from promptcli.training.presets import SettingsInForce, in_force, preset_for
from promptcli.training.train_arguments import Setting, TrainArguments

_TRIPLETS = "nli_for_simcse"


@dataclass(frozen=True)
class TrainingPlan:
    """A job that is to be carried out, alone or as one of several."""

    job: TrainArguments
    command: str = ""  #: with which the run was begun, if it is resumed; "": what was typed
    group: str | None = None  #: the name of the several runs that it is one of

    def of_trial(self, name: str, group: str, changes: Mapping[str, Setting]) -> "TrainingPlan":
        """Return the plan of one of several runs, which changes settings."""
        plan = self.with_changes(changes)
        return replace(plan, job=replace(plan.job, name=name), group=group)

    def with_changes(self, changes: Mapping[str, Setting]) -> "TrainingPlan":
        """Return the plan with other values of single settings."""
        job = replace(self.job, changes={**self.job.changes, **changes})
        return replace(self, job=job)

    @property
    def method(self) -> Method:
        """The method before the data are read, whose columns tell whether it is supervised."""
        return find_method(self.job.method, supervised=self.job.supervised)

    def check(self) -> None:
        """Refuse an unknown method, and ``paper`` without published settings."""
        method = self.method
        if self.job.paper and not method.paper:
            raise UsageError(
                f"{keyword('paper')}: no settings of {method.name} are published; leave it out"
            )

    def check_settings(self) -> None:
        """Refuse an unknown method, and settings that no form of it takes."""
        self.check()
        refusals = []
        for form in METHODS[self.job.method]:
            if form is None:
                continue
            try:
                self.settings(form)
            except UsageError as error:
                refusals.append(error)
            else:
                return
        raise refusals[0]

    @property
    def backbone(self) -> str:
        """The name of the backbone: that of the job, of the model it starts from, or a default."""
        where = self.job.where
        if where.model is not None:
            return where.model
        if self.start_recipe is not None:
            return self.start_recipe.backbone
        published = self.method.paper
        if not (self.job.paper and published):
            return where.backbone
        return PAPER.backbone if PAPER.backbone in published else next(iter(published))

    @functools.cached_property
    def start_recipe(self) -> Recipe | None:
        """How the model that the run starts from reads sentences."""
        if not self.job.start:
            return None
        return open_registry().card(self.job.start).recipe

    @property
    def data(self) -> TrainingData:
        if self.job.data is not None:
            return self.job.data
        if not self.job.paper:
            return BARE.corpus
        return _TRIPLETS if self.job.supervised else PAPER.corpus

    @property
    def development(self) -> DevelopmentTask | str | Path:
        """The graded pairs or queries that choose the best checkpoint."""
        if self.job.on:
            return self.job.on
        if self.job.paper or self.job.data_dir is not None:
            return PAPER.development
        return BARE.development

    def settings(self, method: Method) -> SettingsInForce:
        """Return the settings in force of a form of the method: unsupervised or supervised."""
        preset = preset_for(method, self.backbone, paper=self.job.paper)
        of_start: dict[str, Any] = {}
        if (
            self.start_recipe is not None
            and not self.job.paper
            and keeps_head(preset.settings)
            and not _has_head(self.start_recipe)
        ):
            of_start["keep_head"] = False  # a new head would unlearn what the start knows
        return in_force(
            method, self.backbone, self.job.changes, paper=self.job.paper, of_start=of_start
        )

    def read_as_start(self, method: Method, settings: TrainingSettings, family: str) -> Method:
        """Return the method as it reads sentences, which is as its start does, unless the papers'
        way is asked for.
        """
        if self.start_recipe is None or self.job.paper:
            return method
        return method.starting_as(self.start_recipe, settings, family)


def _has_head(recipe: Recipe) -> bool:
    return any(transform.name == "projection" for transform in recipe.parts.transforms)
