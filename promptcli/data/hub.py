"""STS tasks from the Hugging Face data sets. Knows no encoder; the one place that imports `datasets` for tasks."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import datasets
import numpy as np

from promptcli.data import moses
from promptcli.data.sts import Loaded, Pairs, STSTask, TaskName, protocol_named
from promptcli.errors import NotFoundError


@dataclass(frozen=True)
class HubSet:
    """Where a task's pairs lie: a data set of the hub, or a local folder of JSONL or Parquet files."""

    path: str
    split: str = "test"
    columns: tuple[str, str, str] = ("sentence1", "sentence2", "score")
    revision: str | None = None


_ALL = "train+validation+test"
_SICK = HubSet(
    "SemEvalWorkshop/sem_eval_2014_task_1",
    columns=("premise", "hypothesis", "relatedness_score"),
    revision="refs/convert/parquet",
)
_SHARED = {
    **{name: HubSet(f"mteb/{name.lower()}-sts") for name in ("STS12", "STS13", "STS14", "STS15", "STS16")},
    "STS-B": HubSet("mteb/stsbenchmark-sts"),
    "STS-B:dev": HubSet("mteb/stsbenchmark-sts", split="validation"),
    "STS-B:all": HubSet("mteb/stsbenchmark-sts", split=_ALL),
    "SICK-R:all": replace(_SICK, split=_ALL),
    "STS-B:train": HubSet("mteb/stsbenchmark-sts", split="train"),
}

#: The data set of each task, by protocol. MTEB's copy of SICK has all pairs under `test`; the SemEval 2014 copy keeps
#: the official test split, and its hub-made Parquet branch is read because its main branch may hold a script.
HUB_SETS: Mapping[str, Mapping[str, HubSet]] = {
    "senteval": {
        **_SHARED,
        "SICK-R": _SICK,
    },
    "mteb": {**_SHARED, "SICK-R": HubSet("mteb/sickr-sts")},
}


def load_hub(
    names: Sequence[TaskName],
    protocol: str,
    *,
    offline: bool = False,
    sets: Mapping[str, Mapping[str, HubSet]] = HUB_SETS,
) -> Loaded:
    """Load tasks from the hub or from its cache on this machine.

    Args:
        names: The tasks wanted.
        protocol: A row of ``PROTOCOLS``.
        offline: Use the cache only.
        sets: Where each task lies.
    """
    moses_step = protocol_named(protocol).moses
    tasks, missing = [], {}
    for name in names:
        label = str(name)
        try:
            pairs = _load(sets[protocol][label], offline)
        except _UnreachableError as error:
            offline = True  # one wait for the network is enough; the others may still be in the cache
            missing[label] = str(error)
            continue
        except NotFoundError as error:
            missing[label] = str(error)
            continue
        text = "raw text"
        if moses_step:
            pairs, text = _preprocessed(pairs, lower=name.task != "SICK-R")
        tasks.append(STSTask(name.task, name.split, protocol, text, {name.split: pairs}))
    return Loaded(tasks, missing)


def _preprocessed(pairs: Pairs, *, lower: bool) -> tuple[Pairs, str]:
    """Return the pairs as SentEval makes them from raw text, and what that was."""
    done = moses.tokenize([*pairs.first, *pairs.second], lower=lower)
    text = f"Moses-tokenised, {'lower-cased' if lower else 'cased'}"
    return Pairs(done[: len(pairs)], done[len(pairs) :], pairs.gold), text


class _UnreachableError(NotFoundError):
    """The hub did not answer."""


def _load(source: HubSet, offline: bool) -> Pairs:
    table = _table(source, offline)
    lost = [column for column in source.columns if column not in table.column_names]
    if lost:
        raise NotFoundError(f"data set {source.path} has no column {lost[0]!r}, only {', '.join(table.column_names)}")
    first, second, gold = (list(table[column]) for column in source.columns)
    return Pairs(first, second, np.asarray(gold, dtype=np.float64))


def _table(source: HubSet, offline: bool) -> Any:
    """Return the rows of a data set.

    Raises:
        NotFoundError: it is not in the cache while offline, or cannot be loaded.
        _UnreachableError: the hub did not answer and it is not in the cache.
    """
    hint = "give the tasks' own files: --data-dir FOLDER with STS/ and SICK/"
    with _quiet_and(offline):
        try:
            return datasets.load_dataset(source.path, split=source.split, revision=source.revision)
        except ConnectionError:
            where = "cannot be reached and is not in the cache" if not offline else "is not in the cache (offline)"
            raise _UnreachableError(f"data set {source.path} {where}; {hint}") from None
        except Exception as error:  # the hub and its file formats have classes of their own
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise NotFoundError(f"data set {source.path} cannot be loaded ({reason}); {hint}") from error


@contextlib.contextmanager
def _quiet_and(offline: bool) -> Iterator[None]:
    """Keep `datasets` and the hub client from printing, and from the network where ``offline``; both for the block."""
    loggers = [logging.getLogger(name) for name in ("huggingface_hub", "datasets")]
    levels = [logger.level for logger in loggers]
    was_offline, bars = datasets.config.HF_HUB_OFFLINE, datasets.are_progress_bars_disabled()
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    datasets.config.HF_HUB_OFFLINE = offline or was_offline
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        datasets.config.HF_HUB_OFFLINE = was_offline
        if not bars:
            datasets.enable_progress_bars()
