"""Encoding many sentences with one or several encoders: batches, shared forward passes, order restored.

Knows what an encoder offers (``inputs``, ``finish``), not how it is made.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from promptcli.batching import make_batch, plan_batches

if TYPE_CHECKING:
    from promptcli.encoder import Encoder

Progress = Callable[[int], None]


def silent(done: int) -> None:
    """Take the number of rows newly done, and say nothing."""


@dataclass(frozen=True)
class Encoded:
    """Encoded sentences.

    Attributes:
        vectors: (n, d) float32, row i is sentence i; not normalised.
        truncated: (n,) bool, the sentence lost tokens to the longest input.
    """

    vectors: np.ndarray
    truncated: np.ndarray


def encode_together(
    encoders: "Sequence[Encoder]", sentences: Sequence[str], *, progress: Progress = silent
) -> list[Encoded]:
    """Encode with several encoders, one forward pass wherever the model input is the same.

    Each distinct sentence is encoded once; the order is restored. Results do not depend on the batch.

    Args:
        encoders: May differ in backbone, prompt and all else.
        sentences: n texts.
        progress: Called with the number of sentences newly done; adds up to n.
    """
    unique = list(dict.fromkeys(sentences))
    row_of = {sentence: row for row, sentence in enumerate(unique)}
    back = np.fromiter((row_of[sentence] for sentence in sentences), np.int64, len(sentences))
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, encoder in enumerate(encoders):
        groups.setdefault(encoder.input_key, []).append(number)
    share = _Share(progress, len(sentences), len(unique) * len(groups))
    encoded: dict[int, Encoded] = {}
    for members in groups.values():
        results = _encode_group([encoders[number] for number in members], unique, share)
        encoded.update(zip(members, results, strict=True))
    return [Encoded(encoded[number].vectors[back], encoded[number].truncated[back]) for number in range(len(encoders))]


def _encode_group(encoders: "Sequence[Encoder]", sentences: list[str], progress: Progress) -> list[Encoded]:
    """Encode with encoders of one ``input_key``."""
    first = encoders[0]
    inputs = first.inputs(sentences)
    needs = functools.reduce(lambda left, right: left | right, (encoder.pooling.needs for encoder in encoders))
    lengths = np.fromiter((len(row) for row in inputs.rows), np.int64, len(inputs.rows))
    vectors: list[np.ndarray | None] = [None] * len(encoders)
    template = first.template
    with torch.inference_mode():
        for chosen in plan_batches(lengths):
            rows = [inputs.rows[row] for row in chosen]
            slots = template.mask_slots(rows)
            batch = make_batch(rows, slots, first.backbone.tokens.pad, first.backbone.device, first.max_length)
            hidden = first.run(batch, needs)
            for number, encoder in enumerate(encoders):
                values = encoder.finish(batch, hidden).float().cpu().numpy()
                if vectors[number] is None:
                    vectors[number] = np.empty((len(sentences), values.shape[1]), dtype=np.float32)
                vectors[number][chosen] = values  # type: ignore[index]
            progress(len(np.unique(chosen)))
    truncated = np.array(inputs.truncated, dtype=bool)
    return [
        Encoded(np.empty((0, encoder.width), np.float32) if made is None else made, truncated)
        for encoder, made in zip(encoders, vectors, strict=True)
    ]


class _Share:
    """Turns progress in distinct rows of all groups into progress in sentences."""

    def __init__(self, progress: Progress, sentences: int, rows: int) -> None:
        self._progress, self._sentences, self._rows = progress, sentences, rows
        self._done = 0

    def __call__(self, rows: int) -> None:
        before = self._done * self._sentences // self._rows
        self._done += rows
        self._progress(self._done * self._sentences // self._rows - before)
