"""mteb's own evaluator on an encoder: its tasks, its formulas, its result files. The only file that imports mteb."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from promptcli.data.hub import Announce, as_hub_set, silent
from promptcli.data.tasks import STSTask
from promptcli.encoder.embedder import Embedder
from promptcli.errors import NotFoundError, PromptcliError, UsageError, one_line
from promptcli.evaluation.scores import Label
from promptcli.evaluation.statistics import cosine

#: mteb's name of a task -> ours, where the pairs of a SentEval folder are the same.
LOCAL = {**{f"STS{year}": f"STS{year}" for year in range(12, 17)}, "STSBenchmark": "STS-B", "SICK-R": "SICK-R"}


@dataclass(frozen=True)
class MtebScore:
    """A main score of mteb."""

    model: str
    revision: str  #: of the model: the fingerprint's first 40 characters
    task: str
    metric: str
    value: float  #: as mteb prints it, 0 to 1
    mteb: str  #: its version
    file: str  #: mteb's result file

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return dict(vars(self))


class MtebEncoder:
    """An encoder as mteb calls one; its name and content hash keep results of different encoders apart.

    mteb keeps the scores of models without a name in one place, where one takes the other's.
    """

    def __init__(self, encoder: Embedder, fingerprint: str, label: Label) -> None:
        self._encoder = encoder
        parts = [Path(label.model).name, label.recipe]
        self.name = "promptcli/" + "-".join(re.sub(r"[^\w.-]+", "-", part).strip("-") for part in parts)
        self.revision = fingerprint[:40]

    def encode(self, inputs: Iterable[dict[str, list[str]]], **_: Any) -> np.ndarray:
        """Return the vectors (n, d) of batches of n texts in all, in their order."""
        return self._encoder.encode([text for batch in inputs for text in batch["text"]])

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Return the cosine of every vector of ``first`` (n, d) with every one of ``second`` (m, d), (n, m)."""
        return self._encoder.similarity(first, second)

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """Return the cosine of each vector of ``first`` (n, d) with the one of ``second`` in the same row, (n,)."""
        return torch.from_numpy(cosine(np.asarray(first), np.asarray(second)))

    @property
    def mteb_model_meta(self) -> Any:
        """Name and revision in mteb's own class."""
        from mteb.models.model_meta import ModelMeta

        return ModelMeta.create_empty(overwrites={"name": self.name, "revision": self.revision})


def evaluate_mteb(
    encoders: Sequence[MtebEncoder],
    names: Sequence[str],
    folder: Path,
    *,
    own: Sequence[STSTask] = (),
    announce: Announce = silent,
) -> list[MtebScore]:
    """Run mteb's tasks on encoders and write its result files, ``FOLDER/results/MODEL/REVISION/TASK.json``.

    Args:
        encoders: What is scored.
        names: Of mteb's tasks.
        folder: Made where it is not there.
        own: Pairs that stand in for mteb's data sets; their hash is written down as the data set's revision.
        announce: Called with one line before a data set is looked for.

    Returns:
        One encoder after the other, each with its tasks in the order given.

    Raises:
        UsageError: mteb is not installed, or has no such task.
        NotFoundError: A data set cannot be had.
    """
    mteb = _mteb()
    tasks = {name: _task(mteb, name) for name in dict.fromkeys(names)}
    given = {task.name: task for task in own}
    for name, task in tasks.items():
        if pairs := given.get(LOCAL.get(name, "")):
            about = {"path": "local", "revision": pairs.sha256()[:40]}
            task.metadata = task.metadata.model_copy(update={"dataset": about})
            all_pairs = pairs.pairs()
            task.dataset = as_hub_set(all_pairs.first, all_pairs.second, all_pairs.gold.tolist(), split="test")
            task.data_loaded = True
        else:
            announce(f"fetching data set {task.metadata.dataset['path']}, where mteb does not find it in the cache")
    cache = mteb.ResultCache(folder)
    return [_score(mteb, encoder, task, cache) for encoder in encoders for task in tasks.values()]


def _score(mteb: Any, encoder: MtebEncoder, task: Any, cache: Any) -> MtebScore:
    name = task.metadata.name
    try:
        found = mteb.evaluate(
            encoder, task, cache=cache, overwrite_strategy="always", co2_tracker=False, show_progress_bar=False
        )
    except PromptcliError:
        raise
    except Exception as error:  # data sets, their formats and mteb have classes of their own
        reason = one_line(f"{type(error).__name__}: {error}", 200)
        raise NotFoundError(f"mteb's task {name} did not run: {reason}; pairs of your own: --data-dir FOLDER") from None
    [result] = found.task_results
    file = cache.get_task_result_path(name, encoder.mteb_model_meta)
    metric, value = task.metadata.main_score, float(result.get_score())
    return MtebScore(encoder.name, encoder.revision, name, metric, value, mteb.__version__, str(file))


def _task(mteb: Any, name: str) -> Any:
    try:
        return mteb.get_task(name)
    except KeyError as error:
        raise UsageError(f"mteb has no task {name!r}: {str(error.args[0]).removeprefix('KeyError: ')}") from None


def _mteb() -> Any:
    try:
        import mteb
    except ImportError:
        raise UsageError("--mteb needs mteb, which is not installed: pip install 'promptcli[mteb]'") from None
    return mteb
