"""The library's function of this plug-in: a search over the settings of a training."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from promptcli import Range, UsageError
from promptcli.extending import given as checks
from promptcli.extending import notes

if TYPE_CHECKING:
    from promptcli.plugins.tune.search import SettingsSearch


@checks.check_arguments
def train_search(
    space: Mapping[str, "Range | str | Sequence[Any]"],
    trials: int,
    *,
    name: str,
    **arguments: Any,
) -> "SettingsSearch":
    """Search settings by optuna: the best trial on the development pairs becomes a model.

    A tree-structured Parzen estimator draws each trial; one that is below the median of the earlier
    ones at the same step is ended.

    Args:
        space: Setting -> what is drawn from: a range (``"1e-5..1e-4:log"``), or a list of values.
        trials: How many trainings.
        name: Name of the model, whose record holds all trials.
        arguments: The other arguments of ``train``. With ``resume`` the search goes on where it was
            stopped, and ``trials`` may be more than before.

    Returns:
        The best run and all trials.

    Raises:
        UsageError: As ``train``, or a range of a setting that takes none.
        PromptcliError: No trial has a score.

    Example:
        >>> import promptcli as pc
        >>> space = {"learning_rate": "1e-5..1e-4:log", "batch_size": [64, 128]}
        >>> found = pc.train_search(space, 20, method="simcse", name="mine")  # doctest: +SKIP
        >>> found.best.chosen_by, found.trials[0].changes  # doctest: +SKIP
    """
    from promptcli.extending import SeveralRuns
    from promptcli.plugins.tune.search import search_of, search_settings

    if trials < 1:
        raise UsageError(f"`trials` {trials}: give 1 or more")
    if not space:
        raise UsageError("a search needs settings to draw; give `space`")
    drawn = drawn_from(space)
    with notes.without_network(bool(arguments.get("offline"))):
        runs = SeveralRuns.of(name, arguments, "search")
        if (ended := runs.ended()) is not None:
            return search_of(ended)
        return search_settings(runs, drawn, trials)


def drawn_from(
    space: Mapping[str, "Range | str | Sequence[Any]"],
) -> "dict[str, Range | Sequence[Any]]":
    """Return a space with the ranges read, and each value of a list once."""
    drawn: dict[str, Range | Sequence[Any]] = {}
    for setting, values in space.items():
        if isinstance(values, str):
            drawn[setting] = Range.of(values)
        elif isinstance(values, Range):
            drawn[setting] = values
        else:
            drawn[setting] = list(dict.fromkeys(values))
    return drawn
