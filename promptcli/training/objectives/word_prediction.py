"""``word-prediction``: a definition's vector through the frozen masked-LM head to the word it
defines (DefSent).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from promptcli.backbones.backbone import Backbone
from promptcli.data.layouts import DEFINITIONS
from promptcli.data.sources import TrainingExamples
from promptcli.encoder.batching import to_device
from promptcli.errors import UsageError
from promptcli.training.methods.method import TrainingSettings
from promptcli.training.trainable_encoder import Columns, Objective, TrainableEncoder, Views


class WordPrediction(Objective[TrainingSettings]):
    """Cross-entropy over the vocabulary; head and embedding layer stay pre-trained."""

    layouts = (DEFINITIONS,)

    def prepare(self, encoder: TrainableEncoder, generator: torch.Generator) -> None:
        self._backbone = encoder.backbone
        encoder.backbone.freeze_embeddings()

    @classmethod
    def choose(
        cls, examples: TrainingExamples, settings: TrainingSettings, backbone: Backbone
    ) -> TrainingExamples:
        """Return the definitions of words that are one token of the backbone.

        The other words are kept by name.
        """
        words = examples.columns[1]
        known = [token is not None for token in _tokens(words, backbone)]
        if not any(known):
            raise UsageError(
                f"none of the {len(words):,} words, {words[0]!r} first, is a token of"
                f" {backbone.name!r}"
            )
        others = dict.fromkeys(word for word, one in zip(words, known, strict=True) if not one)
        return dataclasses.replace(examples.only(known), untokenised=tuple(others))

    def loss(self, views: Views, columns: Columns) -> Tensor:
        """Return the mean cross-entropy of decoder(T(h)) against the words' ids."""
        head = self._backbone.head
        ids = to_device(np.array(_tokens(columns[1], self._backbone)), views[0].device)
        return functional.cross_entropy(head.to_logits(head.to_hidden(views[0])), ids)


def _tokens(words: Sequence[str], backbone: Backbone) -> list[int | None]:
    """Return each word's id, or None if it is not a single token; with the space before a word in a
    text.
    """
    tokenizer = backbone.tokenizer
    encoded = tokenizer.encode([f" {word.strip()}" for word in words])
    return [ids[0] if len(ids) == 1 and ids[0] != tokenizer.unk else None for ids in encoded]
