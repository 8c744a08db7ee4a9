"""Trainings with varied settings, by Optuna: every combination, or trials that Optuna draws."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from promptcli.data.csv_options import stored_options
from promptcli.errors import UsageError, require_libraries
from promptcli.notes import current_command, without_network
from promptcli.settings import list_of_names

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from promptcli.data.training_data import TrainingData
    from promptcli.plugins.tune.runs import Space, Tuned
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
) -> "Tuned":
    """Train with several settings or seeds; the best on the development pairs becomes the model.

    Without ``trials`` every combination of the values and seeds is trained. With ``trials`` a
    tree-structured Parzen estimator draws that many combinations. A trial ends early if it is below
    the median of the earlier trials at the same step.

    Args:
        method: See ``train``.
        data: See ``train``.
        name: Name of the model, whose record holds all trainings.
        sweep: Setting -> a list of values, or, with ``trials``, a range: ``"1e-5..1e-4:log"``.
        seeds: Number of seeds: 0, 1, ...
        trials: Number of trainings to draw.
        keep_runs: Keep every training as a separate model, NAME.run-N, not only the best training.
        resume: Continue the stopped trainings of that name; ``trials`` may then be larger.
        force: Replace a model of that name.
        offline: Never use the network.
        arguments: The other arguments and the settings of ``train``.

    Returns:
        The best training, and all trainings.

    Raises:
        UsageError: See ``train``. Also for a setting that cannot be swept, or several processes.
        PromptcliError: No training has a score.

    Example:
        >>> import promptcli as pc
        >>> found = pc.tune("simcse", seeds=2, name="mine")  # doctest: +SKIP
        >>> found.best.development_score, found.trials[0].changes  # doctest: +SKIP
    """
    require_libraries("optuna", extra="trials")
    from promptcli.plugins.tune.runs import train_all
    from promptcli.training.config import TrainConfig

    fields = {item.name for item in dataclasses.fields(TrainConfig)}
    of_config = {field: arguments.pop(field) for field in fields & arguments.keys()}
    for field in {"tests", "report_to"} & of_config.keys():
        of_config[field] = tuple(list_of_names(of_config[field]))
    of_config["csv"] = stored_options(of_config.get("csv"))
    with without_network(offline):
        config = TrainConfig(
            method=method,
            data=data,
            name=name,
            resume=resume,
            force=force,
            settings=arguments,
            command=current_command(),
            **of_config,
        )
        return train_all(config, _space(sweep or {}, seeds, trials), trials, keep_runs)


def _space(sweep: Mapping[str, Any], seeds: int | None, trials: int | None) -> "Space":
    from optuna.distributions import CategoricalDistribution

    space: Space = {}
    for setting, values in sweep.items():
        if not isinstance(values, str):
            space[setting] = CategoricalDistribution(list(dict.fromkeys(values)))
        elif trials is not None:
            space[setting] = _distribution(values)
        else:
            raise UsageError(
                f"{setting} is a range; give the number of draws: trials=N", parameter="sweep"
            )
    if trials is not None and (seeds or not space):
        raise UsageError("needs sweep=SETTINGS and excludes seeds=N", parameter="trials")
    if seeds:
        space["seed"] = CategoricalDistribution(range(seeds))
    return space


def _distribution(written: str) -> "BaseDistribution":
    """Return the uniform distribution of ``LOW..HIGH``, or the log-uniform distribution of
    ``LOW..HIGH:log``; over integers if both ends are integers.
    """
    from optuna.distributions import FloatDistribution, IntDistribution

    ends, _, scale = written.partition(":")
    low, _, high = ends.partition("..")
    try:
        is_log = {"": False, "log": True}[scale]
        if float(low) >= float(high):
            raise ValueError
        if low.isdecimal() and high.isdecimal():
            return IntDistribution(int(low), int(high), log=is_log)
        return FloatDistribution(float(low), float(high), log=is_log)
    except (ValueError, KeyError):
        raise UsageError(
            f"range {written!r} is not allowed; give LOW..HIGH or LOW..HIGH:log with LOW below"
            " HIGH, and above 0 for a logarithm, e.g. 1e-5..1e-4:log",
            parameter="sweep",
        ) from None
