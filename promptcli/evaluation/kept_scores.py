"""Scores of earlier evaluations, on disk under a key of everything that determines them."""

import hashlib
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from promptcli.data.tasks import AnyTask, PluginTask, RetrievalTask, STSTask
from promptcli.encoder.encoder import TorchEncoder
from promptcli.evaluation.evaluator import EvalSettings
from promptcli.evaluation.scores import Label, RetrievalScore, Score, SpearmanScore
from promptcli.settings import home_folder
from promptcli.storage.cache import Cache

#: Increase it when the same vectors and data get a different score or interval, or a score gets a
#: new field.
PROTOCOL_VERSION = 4


def _kept_as(task: AnyTask) -> type[Score] | None:
    """Return the class of a task's scores; None if they are not stored.

    Scores of a ``CustomMetricTask`` are not stored, because its metric is a function that may
    change.
    """
    if isinstance(task, PluginTask):
        return task.kept_as
    return {STSTask: SpearmanScore, RetrievalTask: RetrievalScore}.get(type(task))


class KeptScores:
    """The scores of earlier evaluations; with ``fresh`` none of them is returned."""

    def __init__(self, settings: EvalSettings, *, fresh: bool = False) -> None:
        self._cache = Cache(home_folder() / "cache" / "scores", fresh=fresh)
        self._settings = settings
        self._hashes: dict[int, str] = {}  # id of a task -> the hash of its data and gold

    def get(self, encoder: TorchEncoder, label: Label, task: AnyTask) -> Score | None:
        """Return the score of an encoder on a task under a label, or None."""
        kind = _kept_as(task)
        values = None if kind is None else self._cache.get(self._key(encoder, task))
        if values is None:
            return None
        score = msgspec.convert(values, kind, dec_hook=lambda _, numbers: np.array(numbers))
        return replace(score, label=label, recipe=encoder.recipe.to_dict())

    def put(self, encoder: TorchEncoder, task: AnyTask, score: Score) -> None:
        if _kept_as(task) is not None:
            values = msgspec.to_builtins(score, enc_hook=np.ndarray.tolist)
            self._cache.put(self._key(encoder, task), values)

    def _key(self, encoder: TorchEncoder, task: AnyTask) -> dict[str, Any]:
        if id(task) not in self._hashes:
            content = msgspec.json.encode(task, enc_hook=np.ndarray.tolist)
            self._hashes[id(task)] = hashlib.sha256(content).hexdigest()
        computed_by = dict(encoder.provenance)  # dtype, or the exported model
        del computed_by["backbone"]  # a name; the fingerprint hashes the backbone's content
        key = {
            "protocol_version": PROTOCOL_VERSION,
            "fingerprint": encoder.fingerprint,
            "computed_by": computed_by,
            "device": encoder.device.type,
            "data": self._hashes[id(task)],
        }
        if isinstance(task, PluginTask):
            key["settings"] = task.score_key(self._settings)
        if isinstance(task, RetrievalTask):
            key["prompts"] = vars(encoder.leading)  # of queries and documents
        return key
