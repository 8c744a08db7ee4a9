"""A fake encoder whose vectors are a fixed function of the sentence, and the command line on it."""

import hashlib
import os
import sys
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from promptcli.data.vectors.precision import unit
from promptcli.recipe import LeadingTexts, Recipe

WIDTH = 8


@dataclass(frozen=True)
class FakeEncoded:
    vectors: np.ndarray
    truncated: np.ndarray


class FakeEncoder:
    """Makes vectors from a sentence's hash; more than ``max_length`` words count as cut.

    It waits forever after ``most`` calls.
    """

    def __init__(self, width=WIDTH, pause=0.0, most=None):
        self.recipe = Recipe(max_length=16)
        self.max_length = 16
        self.width = width
        self.fingerprint = "f" * 64
        self.name = "fake"
        self.piece_tokenizer = SimpleNamespace(pieces_per_word=lambda texts: 1.0)
        self.provenance = {"backbone": "fake", "dtype": "float32"}
        self.pause = pause
        self.most = most
        self.calls = []
        self.prompt_encoders, self.tensors, self.leading = [self], dict, LeadingTexts()

    def in_role(self, role, *, report=False):
        return self

    def encode_report(self, sentences, *, batch_size=None, progress=lambda done: None):
        self.calls.append(len(sentences))
        time.sleep(self.pause)
        if self.most is not None and len(self.calls) > self.most:
            threading.Event().wait()
        progress(len(sentences))
        vectors = np.stack([vector(sentence, self.width) for sentence in sentences])
        return FakeEncoded(
            vectors, np.array([len(sentence.split()) > self.max_length for sentence in sentences])
        )

    def encode_windows(self, windows, **options):
        return (self.encode_report(window, **options) for window in windows)

    def without_cache(self):
        return self

    def encode(self, sentences, *, progress=lambda done: None, normalize_embeddings=False):
        vectors = self.encode_report(sentences, progress=progress).vectors
        return unit(vectors) if normalize_embeddings else vectors


def vector(sentence, width=WIDTH):
    digest = hashlib.shake_128(sentence.encode()).digest(2 * width)
    return (np.frombuffer(digest, "<u2").astype(np.float32) - 32768) / 1000


def main():
    """Run promptcli with the fake encoder.

    The environment may set the rows of a window, a pause in each, and the number of windows after
    which it waits forever.
    """
    import promptcli.embedding.writing
    from promptcli.cli import command_line as cli
    from promptcli.models import loading as encoders

    if "FAKE_WINDOW" in os.environ:
        promptcli.embedding.writing.WINDOW = int(os.environ["FAKE_WINDOW"])
    pause = float(os.environ.get("FAKE_PAUSE", "0"))
    most = int(os.environ["FAKE_MOST"]) if "FAKE_MOST" in os.environ else None
    encoders.open_torch_encoder = lambda model, **_: FakeEncoder(pause=pause, most=most)
    encoders.open_encoder = encoders.open_torch_encoder
    cli.main(sys.argv[1:])
