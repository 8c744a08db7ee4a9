"""``word-prediction``: the frozen masked-LM head predicts the word from its definition's vector
(DefSent).
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.devices import to_device
from promptcli.data.layouts import DEFINITIONS
from promptcli.data.training_data import TrainingExamples
from promptcli.errors import UsageError
from promptcli.training.methods.method import TrainingSettings
from promptcli.training.objective import Columns, Objective, Views
from promptcli.training.trainable_encoder import TrainableEncoder


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
        """Return the definitions of words that are a single token of the backbone; the result also
        names the other words.
        """
        words = examples.columns[1]
        is_token = [token is not None for token in _tokens(words, backbone)]
        if not any(is_token):
            raise UsageError(
                f"none of the {len(words):,} words, {words[0]!r} first, is a token of"
                f" {backbone.name!r}"
            )
        other_words = [word for word, single in zip(words, is_token, strict=True) if not single]
        return dataclasses.replace(
            examples.select(is_token), untokenised_words=tuple(dict.fromkeys(other_words))
        )

    def loss(self, views: Views, columns: Columns) -> Tensor:
        """Return the mean cross-entropy of decoder(T(h)) against the words' ids."""
        head = self._backbone.head
        ids = to_device(np.array(_tokens(columns[1], self._backbone)), views[0].device)
        return functional.cross_entropy(head.to_logits(head.to_hidden(views[0])), ids)


def _tokens(words: Sequence[str], backbone: Backbone) -> list[int | None]:
    """Return the id of each word, or None if it is not a single token.

    Words are encoded after a space, as inside a text.
    """
    tokenizer = backbone.tokenizer
    encoded = tokenizer.encode([f" {word.strip()}" for word in words])
    return [ids[0] if len(ids) == 1 and ids[0] != tokenizer.unk else None for ids in encoded]
