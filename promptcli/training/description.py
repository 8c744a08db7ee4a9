"""What a run would do, without reading weights or using the network: ``train --dry-run``."""

import dataclasses
import os
from typing import Any

from promptcli.backbones.by_name import shape_of
from promptcli.data.sources import is_fetched, source_name, training_examples
from promptcli.training.batches import check_sizes
from promptcli.training.methods import find_method
from promptcli.training.methods.method import Method, keeps_head
from promptcli.training.objectives import find_objective
from promptcli.training.plan import TrainingPlan
from promptcli.training.run_data import read_examples


def describe(plan: TrainingPlan) -> dict[str, Any]:
    """Return the settings in force, the recipe and the data of a plan, JSON-ready.

    Local data are read: their columns decide whether the method is supervised.
    """
    plan.check()
    method = plan.method
    backbone = plan.backbone
    data = plan.data
    examples = None
    if plan.job.data is not None and not is_fetched(data):
        examples = read_examples(plan)
        method = find_method(plan.job.method, supervised=examples.supervised)
        check_sizes(plan.settings(method).settings, examples.sizes)
    objective = find_objective(method)
    samples = {}
    if not is_fetched(data):
        samples = objective.samples(
            lambda: examples or training_examples(data, layouts=objective.layouts)
        )
    found = plan.settings(method)
    settings = found.settings
    family = _family_of(backbone, method)
    method = plan.read_as_start(method, settings, family)
    head = method.head(family, settings)
    learns = [*method.learns]
    shown_head = None
    if head:
        learns.append("head")
        shown_head = f"{head}, {'kept' if keeps_head(settings) else 'while training only'}"
    return {
        "method": method.name,
        "source": method.source,
        "backbone": backbone,
        "data": source_name(data),
        "chosen_by": str(plan.development),
        "views": list(method.variant(family).prompts(settings)),
        "pooling": method.pooling_of(family, settings),
        "objective": method.objective,
        "learns": learns,
        "head": shown_head,
        "recipe": method.recipe(backbone, family, settings).to_dict(),
        "dtype": plan.job.where.dtype or "auto",
        "preset": found.whose(),
        **dataclasses.asdict(settings),
        **samples,
    }


def _family_of(backbone: str, method: Method) -> str:
    """Return a backbone's family: that of a published one by its name, so that no network is
    needed.
    """
    if backbone in method.paper and not os.path.isdir(backbone):
        for family in ("roberta", "bert", "opt", "llama", "mistral"):
            if family in backbone.lower():
                return family
    return shape_of(backbone).family
