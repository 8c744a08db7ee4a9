"""Trainings with other settings each, by Optuna: every combination, or trials that it draws."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from promptcli.errors import UsageError, require
from promptcli.notes import without_network
from promptcli.plugins.tune.trials import Range, Space, Tuned

if TYPE_CHECKING:
    from promptcli.data.sources import TrainingData
    from promptcli.training.config import Setting


def tune(
    method: str = "",
    data: "TrainingData | None" = None,
    *,
    name: str,
    sweep: "Mapping[str, str | Sequence[Setting]] | None" = None,
    seeds: int | None = None,
    trials: int | None = None,
    keep_runs: bool = False,
    resume: bool = False,
    force: bool = False,
    offline: bool = False,
    **arguments: Any,
) -> Tuned:
    """Train with several settings or seeds; the best on the development pairs becomes the model.

    Without ``trials`` every combination of the values and seeds is trained. With it a
    tree-structured Parzen estimator draws that many, and one that is below the median of the
    earlier ones at the same step is ended.

    Args:
        method: As of ``train``.
        data: As of ``train``.
        name: Name of the model, whose record holds all trainings.
        sweep: Setting -> a list of values, or a range for ``trials``: ``"1e-5..1e-4:log"``.
        seeds: Train with the seeds 0, 1, ... of that number.
        trials: How many trainings are drawn.
        keep_runs: Keep every training as a model of its own, NAME.run-N, not the best alone.
        resume: Go on with those of that name that were stopped; ``trials`` may then be more.
        force: Replace a model of that name.
        offline: Never use the network.
        arguments: The other arguments and the settings of ``train``.

    Returns:
        The best training and all of them.

    Raises:
        UsageError: As ``train``; a setting that is not swept; several processes.
        PromptcliError: No training has a score.

    Example:
        >>> import promptcli as pc
        >>> found = pc.tune("simcse", seeds=2, name="mine")  # doctest: +SKIP
        >>> found.best.chosen_by, found.trials[0].changes  # doctest: +SKIP
    """
    require("optuna", extra="trials")
    from promptcli.plugins.tune.runs import train_all
    from promptcli.training.config import TrainConfig

    fields = {item.name for item in dataclasses.fields(TrainConfig)}
    given = {field: arguments.pop(field) for field in fields & arguments.keys()}
    for field in {"tests", "report_to"} & given.keys():
        given[field] = tuple(given[field])
    with without_network(offline):
        config = TrainConfig(
            method=method,
            data=data,
            name=name,
            resume=resume,
            force=force,
            settings=arguments,
            **given,
        )
        return train_all(config, _space(sweep or {}, seeds, trials), trials, keep_runs)


def _space(
    sweep: "Mapping[str, str | Sequence[Setting]]", seeds: int | None, trials: int | None
) -> Space:
    space: Space = {}
    for setting, values in sweep.items():
        if isinstance(values, str):
            if trials is None:
                raise UsageError(
                    f"{setting} is a range; trials says how many are drawn", parameter="sweep"
                )
            space[setting] = Range.of(values)
        else:
            space[setting] = list(dict.fromkeys(values))
    if trials is not None and (seeds or not space):
        raise UsageError("draws from what is swept, without seeds", parameter="trials")
    if seeds:
        space["seed"] = list(range(seeds))
    return space
