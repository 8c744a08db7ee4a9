"""Tasks of mteb, which mteb itself runs on an encoder. No other file imports mteb."""

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import promptcli
from promptcli.data.hub_sets import as_hub_set
from promptcli.data.senteval import GoldRows
from promptcli.data.task_table import TaskName
from promptcli.data.tasks import PluginTask, STSTask, load_graded_tasks
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import (
    NotFoundError,
    PromptcliError,
    UsageError,
    join_lines,
    require_libraries,
)
from promptcli.evaluation.evaluator import EvalSettings, TaskVectors
from promptcli.evaluation.scores import Label, Score
from promptcli.evaluation.statistics import cosine
from promptcli.notes import note, warn


@dataclass(frozen=True, kw_only=True)
class MtebScore(Score):
    """The main score x 100 of a task of mteb."""

    model: str = field(metadata={"json": "mteb_model"})  #: mteb's name of the model
    revision: str  #: of the model: 40 characters of its fingerprint, and promptcli's version
    mteb: str  #: version of mteb
    file: str  #: mteb's result file


#: mteb's name of a task -> our name, if a SentEval folder has the same pairs.
_SENTEVAL_NAMES = {
    **{f"STS{year}": f"STS{year}" for year in range(12, 17)},
    "STSBenchmark": "STS-B",
    "SICK-R": "SICK-R",
}


@dataclass(frozen=True)
class MtebTask(PluginTask):
    """A task of mteb, which asks the encoder for vectors itself."""

    pairs: STSTask | None = None  #: used instead of mteb's data set

    @classmethod
    def of(cls, name: TaskName, parts: GoldRows, folder: Path | None) -> "MtebTask":
        """Return mteb's task of a name, with the pairs of a SentEval folder if it has them."""
        if folder is None or name.split not in _SENTEVAL_NAMES:
            return cls(name.split)
        pairs = load_graded_tasks(folder, [_SENTEVAL_NAMES[name.split]], "mteb").tasks
        return cls(name.split, pairs[0] if pairs else None)

    def scores(self, embedded: Sequence[TaskVectors], settings: EvalSettings) -> list[MtebScore]:
        return [self._score(encoded, settings.mteb_folder) for encoded in embedded]

    def _score(self, encoded: TaskVectors, folder: Path) -> MtebScore:
        """Run the task on an encoder; mteb writes ``FOLDER/results/MODEL/REVISION/TASK.json``."""
        if encoded.encoder is None:
            raise UsageError(
                f"{self.name} takes a model, and {encoded.label.recipe} holds vectors only;"
                " leave one of them out"
            )
        require_libraries("mteb", extra="mteb")
        import mteb

        encoder = MtebEncoder(encoded.encoder, encoded.fingerprint, encoded.label)
        mteb_task = self._mteb_task()
        cache = mteb.ResultCache(folder)
        try:
            results = mteb.evaluate(
                encoder,
                mteb_task,
                cache=cache,
                overwrite_strategy="always",
                co2_tracker=False,
                show_progress_bar=False,
            )
        except PromptcliError:
            raise
        except Exception as error:  # of mteb, of a data set or of its format
            reason = join_lines(f"{type(error).__name__}: {error}", 200)
            raise NotFoundError(
                f"mteb's task {self.name} did not run: {reason}; data_dir=FOLDER reads your"
                " own pairs"
            ) from None
        [result] = results.task_results
        return MtebScore(
            **encoded.names,
            task=f"mteb:{self.name}",
            metric=mteb_task.metadata.main_score,
            value=100 * float(result.get_score()),
            model=encoder.name,
            revision=encoder.revision,
            mteb=mteb.__version__,
            file=str(cache.get_task_result_path(self.name, encoder.mteb_model_meta)),
        )

    def _mteb_task(self) -> Any:
        """Return mteb's own task.

        If the pairs replace its data set, their hash is the revision of the data set.
        """
        import mteb

        try:
            task = mteb.get_task(self.name)
        except KeyError as error:
            reason = str(error.args[0]).removeprefix("KeyError: ")
            raise UsageError(f"mteb has no task {self.name!r}: {reason}") from None
        if self.pairs is None:
            warn(f"fetching data set {task.metadata.dataset['path']}, unless it is in mteb's cache")
            return task
        dataset = {"path": "local", "revision": self.pairs.sha256()[:40]}
        task.metadata = task.metadata.model_copy(update={"dataset": dataset})
        pairs = self.pairs.pairs()
        task.dataset = as_hub_set(pairs.first, pairs.second, pairs.gold.tolist(), split="test")
        task.data_loaded = True
        note(f"{self.name}: pairs of {self.pairs.label}, {self.pairs.text}; mteb's text is raw")
        return task


class MtebEncoder:
    """An encoder with mteb's interface.

    Its name and its revision, a content hash, are the folder of its results.
    """

    def __init__(self, encoder: TorchEncoder, fingerprint: str, label: Label) -> None:
        self._encoder = encoder
        self.similarity = encoder.similarity
        names = [Path(label.model).name, label.recipe]
        self.name = "promptcli/" + "-".join(
            re.sub(r"[^\w.-]+", "-", name).strip("-") for name in names
        )
        self.revision = f"{fingerprint[:40]}-{promptcli.__version__}"
        self._prompted = functools.cache(self._prompt_for)

    def encode(
        self,
        inputs: Iterable[dict[str, list[str]]],
        *,
        task_metadata: Any = None,
        prompt_type: Any = None,
        **_: Any,
    ) -> np.ndarray:
        """Return the vectors (n, d) of the n texts of some batches.

        As in mteb, the prompt may depend on the task, on its type, and on the role of the texts.
        """
        task = (getattr(task_metadata, "name", ""), getattr(task_metadata, "type", ""))
        encoder = self._prompted(*task, str(getattr(prompt_type, "value", prompt_type) or ""))
        return encoder.encode([text for batch in inputs for text in batch["text"]])

    def _prompt_for(self, task: str, kind: str, role: str) -> Encoder:
        names = (f"{task}-{role}", task, f"{kind}-{role}", kind)
        return self._encoder.in_role(
            next((name for name in names if name in self._encoder.prompts), role), report=True
        )

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """Return the cosines (n,) of the rows of ``first`` (n, d) with those of ``second``."""
        return torch.from_numpy(cosine(np.asarray(first), np.asarray(second)))

    @property
    def mteb_model_meta(self) -> Any:
        from mteb.models.model_meta import ModelMeta

        return ModelMeta.create_empty(overwrites={"name": self.name, "revision": self.revision})
