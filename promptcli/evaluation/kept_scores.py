"""Scores of earlier evaluations, stored on disk under everything that determines them."""

import hashlib
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from promptcli.data.tasks import AnyTask, OtherTask, RetrievalTask, STSTask
from promptcli.encoder.encoder import TorchEncoder
from promptcli.evaluation.evaluator import EvalSettings
from promptcli.evaluation.scores import Label, RetrievalScore, Score, SpearmanScore
from promptcli.settings import home_folder
from promptcli.storage.cache import Cache

#: Increase it when the same vectors and data get a different score or interval, or a score gets a
#: new field.
PROTOCOL_VERSION = 4


def _kept_as(task: AnyTask) -> type[Score] | None:
    """Return the class of the scores of a task.

    None if scores are not stored: the metric of an ``OwnTask`` is a function, which may change
    unnoticed.
    """
    if isinstance(task, OtherTask):
        return task.kept_as
    return {STSTask: SpearmanScore, RetrievalTask: RetrievalScore}.get(type(task))


class KeptScores:
    """The scores of earlier evaluations; a ``fresh`` one returns none of them."""

    def __init__(self, settings: EvalSettings, *, fresh: bool = False) -> None:
        self._cache = Cache(home_folder() / "cache" / "scores", fresh=fresh)
        self._settings = settings
        self._hashes: dict[int, str] = {}  # of each task's data, by the task's id

    def get(self, encoder: TorchEncoder, label: Label, task: AnyTask) -> Score | None:
        """Return the score of an encoder on a task under a label, or None."""
        kind = _kept_as(task)
        if kind is None:
            return None
        values = self._cache.get(self._key(encoder, task))
        if values is None:
            return None
        score = msgspec.convert(values, kind, dec_hook=_array)
        return replace(score, label=label, recipe=encoder.recipe.to_dict())

    def put(self, encoder: TorchEncoder, task: AnyTask, score: Score) -> None:
        if _kept_as(task) is not None:
            values = msgspec.to_builtins(score, enc_hook=np.ndarray.tolist)
            self._cache.put(self._key(encoder, task), values)

    def _key(self, encoder: TorchEncoder, task: AnyTask) -> dict[str, Any]:
        computed_by = dict(encoder.provenance)  # dtype, or the exported model
        del computed_by["backbone"]  # its name: the fingerprint hashes its content
        key = {
            "protocol_version": PROTOCOL_VERSION,
            "fingerprint": encoder.fingerprint,
            "computed_by": computed_by,
            "device": encoder.device.type,
            "data": self._hash(task),
        }
        if isinstance(task, OtherTask):
            key["settings"] = task.settings(self._settings)
        if isinstance(task, RetrievalTask):
            key["prompts"] = vars(encoder.leading)  # of queries and documents
        return key

    def _hash(self, task: AnyTask) -> str:
        """Return the hash of a task's name, protocol, sentences and gold."""
        if id(task) not in self._hashes:
            content = msgspec.json.encode(task, enc_hook=np.ndarray.tolist)
            self._hashes[id(task)] = hashlib.sha256(content).hexdigest()
        return self._hashes[id(task)]


def _array(_: type, values: list[float]) -> np.ndarray:
    return np.array(values)
