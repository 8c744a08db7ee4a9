"""Encoders that count letters, in place of forward passes."""

from types import SimpleNamespace

import numpy as np

from promptcli.encoder.encoder import Embeddings
from promptcli.evaluation import evaluator
from promptcli.recipe import RECIPES

LETTERS = "abcdefghij"


class LetterEncoder:
    """Counts letters and takes a power of each count; each power is another encoder."""

    def __init__(self, power=1.0, recipe=RECIPES["first-last-avg"]):
        self.recipe, self.power, self.fingerprint = recipe, power, f"letters-{power}"
        self.backbone, self.tensors = SimpleNamespace(name=recipe.backbone, dtype="float32"), dict
        self.loaded_backbone = self.backbone
        self.backbone_provenance = SimpleNamespace(backbone=recipe.backbone)
        self.input_key, self.prompt_encoders = (), [self]
        self.provenance = {"backbone": recipe.backbone, "dtype": "float32"}
        self.device, self.leading = SimpleNamespace(type="cpu"), SimpleNamespace()

    def in_role(self, role, *, report=False):
        return self

    def vectors(self, sentences):
        counts = [[sentence.count(letter) for letter in LETTERS] for sentence in sentences]
        return np.array(counts, dtype=np.float32) ** self.power


def count_letters(monkeypatch):
    """Let letter encoders be evaluated; return a list that gets the sentences of each pass."""
    asked = []

    def encode_together(encoders, sentences, *, progress):
        asked.append(list(sentences))
        progress(len(sentences))
        return [
            Embeddings(encoder.vectors(sentences), *np.zeros((2, len(sentences)), int))
            for encoder in encoders
        ]

    monkeypatch.setattr(evaluator, "encode_together", encode_together)
    return asked
