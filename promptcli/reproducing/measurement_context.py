"""The context of measurements: one backbone, one data folder, sentences to fit on; each loaded once, when needed."""

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from promptcli.backbones.backbone import Backbone
from promptcli.data.dialect import DEFINITIONS, LABELLED_PAIRS, PAIRS, SENTENCES, TRIPLETS
from promptcli.data.senteval import tasks_from
from promptcli.data.sources import TrainingExamples, fitting_sentences, training_examples
from promptcli.data.tasks import STSTask, load_tasks, task_names
from promptcli.errors import NotFoundError, UsageError
from promptcli.reproducing.published import Texts, short_name
from promptcli.storage.cache import Cache

#: The papers' pairs and text.
PROTOCOL = "senteval"

#: Training data by their option: the layouts allowed, in words, and their columns.
EXAMPLES: dict[str, tuple[tuple[tuple[str, ...], ...], str, str]] = {
    "corpus": ((SENTENCES,), "sentences", ""),
    "triplets": ((TRIPLETS, PAIRS), "pairs or triplets", "sent0, sent1 and perhaps hard_neg"),
    "labelled": ((LABELLED_PAIRS,), "labelled pairs", "premise, hypothesis, label"),
    "definitions": ((DEFINITIONS,), "definitions", "word, definition"),
}


@dataclass(frozen=True)
class MeasureData:
    """The data of one measure."""

    facts: dict[str, dict[str, Any]] = field(default_factory=dict)  #: data set -> hash, size, ...; JSON-ready
    missing: dict[str, str] = field(default_factory=dict)  #: missing data set -> why
    content: Any = None  #: for the measure alone


@dataclass(eq=False)
class MeasurementContext:
    """One backbone and the data to measure it on."""

    backbone_name: str  #: a shipped name, a folder, a hub id, or a file of word vectors
    open_backbone: Callable[[], Backbone]  #: loads a new copy, since training changes it
    cache: Cache  #: of figures and trained weights
    data_dir: Path | None = None  #: SentEval folder, or None for the hub
    texts: Texts = field(default_factory=Texts)  #: data that rows are fitted, counted and trained on
    seeds: Sequence[int] = ()  #: of the runs of every trained row; none: such rows are left out
    vectors: Path | None = None  #: folder of other programs' vectors
    #: Draws a figure of the papers into a file and returns the file's name.
    draw: "Callable[[str, MeasurementContext], str] | None" = None
    _loaded: dict[str, MeasureData] = field(default_factory=dict, init=False)
    _examples: dict[str, TrainingExamples] = field(default_factory=dict, init=False)

    @functools.cached_property
    def backbone(self) -> Backbone:
        """The language model."""
        return self.open_backbone()

    @functools.cached_property
    def backbone_facts(self) -> dict[str, Any]:
        """Identity of the backbone, JSON-ready, without its folder."""
        provenance = self.backbone.provenance
        return {
            "name": short_name(self.backbone_name),
            "family": provenance.family,
            "weights_sha256": provenance.weights_sha256,
            "tokenizer_sha256": provenance.tokenizer_sha256,
            "dtype": str(self.backbone.dtype).removeprefix("torch."),
        }

    @functools.cached_property
    def sentences(self) -> list[str]:
        """The sentences to fit on."""
        with tasks_from(self.data_dir):
            return fitting_sentences(self.texts.corpus)

    @functools.cached_property
    def corpus_facts(self) -> dict[str, Any]:
        """Identity of the sentences, JSON-ready, without their folder."""
        digest = hashlib.sha256("\n".join(self.sentences).encode()).hexdigest()
        return {"name": Path(self.texts.corpus).name, "sentences": len(self.sentences), "sha256": digest}

    def examples(self, kind: str) -> TrainingExamples:
        """Return the training data of a kind in ``EXAMPLES``."""
        source, (layouts, what, columns) = getattr(self.texts, kind), EXAMPLES[kind]
        if source is None:
            raise UsageError(f"supervised rows need `{kind}` with columns {columns}")
        if kind not in self._examples:
            known = dict.fromkeys([*layouts, *(layout for kinds, *_ in EXAMPLES.values() for layout in kinds)])
            self._examples[kind] = training_examples(source, layouts=tuple(known))
        examples = self._examples[kind]
        if (examples.layout or SENTENCES) not in layouts:
            raise UsageError(f"{kind} are {what}; {Path(source).name} is not")
        return examples

    def example_facts(self, kind: str) -> dict[str, Any]:
        """Return the identity of those examples, JSON-ready, without their folder."""
        examples = self.examples(kind)
        return {"name": Path(getattr(self.texts, kind)).name, "examples": len(examples), "sha256": examples.sha256}

    @property
    def missing(self) -> dict[str, str]:
        """Missing data set -> why."""
        return {name: reason for loaded in self._loaded.values() for name, reason in loaded.missing.items()}

    def tasks(self, names: Sequence[str]) -> MeasureData:
        """Return STS tasks; ``content`` is the list of those with data."""

        def load() -> MeasureData:
            loaded = load_tasks(self.data_dir, task_names(names), PROTOCOL)
            facts: dict[str, dict[str, Any]] = {}
            for task in loaded.tasks:
                size = {"pairs": len(task.pairs()), "expected_pairs": task.expected_pairs}
                facts[task.label] = {**size, "text": task.text, "sha256": task.sha256()}
            return MeasureData(facts, loaded.missing, loaded.tasks)

        return self.once(" ".join(names), load)

    def development(self) -> STSTask:
        """Return the pairs that trained weights and heads are chosen by, as in the papers."""
        loaded = self.tasks(["STS-B:dev"])
        if loaded.missing:
            raise NotFoundError("no data: STS-B:dev")
        task: STSTask = loaded.content[0]
        return task

    def once(self, name: str, load: Callable[[], MeasureData]) -> MeasureData:
        """Return the data of a name, loaded the first time."""
        if name not in self._loaded:
            self._loaded[name] = load()
        return self._loaded[name]


def hash_of(value: Any) -> str:
    """Return the hex SHA-256 of JSON-ready values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
