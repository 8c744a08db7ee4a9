"""The result of ``train``: the trained encoder, its scores, and the reference scores."""

import functools
from dataclasses import dataclass
from typing import Any

from promptcli.encoder.encoder import TorchEncoder
from promptcli.models.entries import Entry
from promptcli.models.loading import DEFAULT_MODEL, open_model
from promptcli.notes import without_network
from promptcli.storage.typed_documents import convert
from promptcli.training.watching import DevScore

_FIELDS_SHOWN = (
    *("seed", "steps", "best_step", "seconds", "nearest_words"),
    *("settings", "differs_from_paper", "data", "development"),
    *("backbone", "command", "versions", "extensions"),
)
UNTRAINED_START = "begun"  #: its name in the records of models
#: The scored encoders: the untrained recipe, the method's own start, the default model, the result.
COLUMNS = ("untrained", UNTRAINED_START, "default", "trained")


@dataclass(frozen=True)
class Trained:
    """A trained encoder and its scores."""

    entry: Entry  #: in the registry, if the model has a name
    device: str = "auto"
    is_main: bool = True  #: whether this process reports and writes, if several train together
    offline: bool = False  #: whether the encoder is loaded without the network

    @functools.cached_property
    def encoder(self) -> TorchEncoder:
        with without_network(self.offline):
            return open_model(self.entry, device=self.device, dtype="stored")

    @property
    def facts(self) -> dict[str, Any]:
        """The run in the entry's provenance: settings, data, steps, seconds, ..."""
        return dict(self.entry.provenance["trained"])

    @property
    def curve(self) -> list[DevScore]:
        return [convert(score, DevScore) for score in self.facts["curve"]]

    @property
    def scores(self) -> dict[str, float]:
        """The encoder's Spearman x 100 by task, the development set first."""
        return self._column("trained")

    @property
    def untrained(self) -> dict[str, float]:
        """The untrained recipe's Spearman x 100 by task."""
        return self._column("untrained")

    @property
    def untrained_start(self) -> dict[str, float]:
        """Spearman x 100 of the method's own start, whose learned tensors are as drawn.

        Empty if it equals ``untrained``.
        """
        return self._column(UNTRAINED_START)

    @property
    def default(self) -> dict[str, float]:
        """The default model's Spearman x 100 on the development set.

        Empty if the run started from that model.
        """
        return self._column("default")

    def _column(self, name: str) -> dict[str, float]:
        return dict(self.facts["scores"][name])

    @property
    def references(self) -> dict[str, dict[str, float]]:
        """The scores by task of the reference encoders, by their names in the printed table."""
        start = self.untrained_start
        plain = "plain encoder" if start else self.facts.get("started_from", "untrained")
        others = {"untrained start": start, DEFAULT_MODEL: self.default}
        scored = {name: scores for name, scores in others.items() if scores}
        return {plain: self.untrained} | scored

    @property
    def chosen_by(self) -> float:
        """The score on the development set."""
        return next(iter(self.scores.values()))

    @property
    def below(self) -> dict[str, float]:
        """The references with a better development score, and their scores."""
        development = next(iter(self.scores))
        values = {name: scores[development] for name, scores in self.references.items()}
        return {name: value for name, value in values.items() if value > self.chosen_by}

    def to_dict(self) -> dict[str, Any]:
        """Return the scores and their sources, JSON-ready."""
        facts = self.facts
        columns = facts["scores"]
        rows = []
        for task in self.scores:
            values = {
                name: round(columns[name][task], 2) for name in COLUMNS if task in columns[name]
            }
            rows.append({"task": task, **values})
        return {
            **{name: facts[name] for name in _FIELDS_SHOWN if facts.get(name, []) != []},
            "better": self.chosen_by > next(iter(self.untrained.values())),
            "below": list(self.below),
            "scores": rows,
        }
