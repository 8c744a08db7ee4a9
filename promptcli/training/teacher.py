"""Vectors of another model for a run, and hard negatives chosen by them.

The vectors are computed once, in parts that survive a kill, or read from a file.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from promptcli.data.input_files import check_file
from promptcli.data.layouts import TRIPLETS
from promptcli.data.training_data import TrainingExamples
from promptcli.data.vectors.formats import read_array, read_manifest
from promptcli.data.vectors.precision import Floats, unit
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import UsageError
from promptcli.models.loading import open_torch_encoder
from promptcli.notes import note, stage
from promptcli.storage.files import atomic_path, sha256
from promptcli.training.methods.distill import TeacherSettings

PART_ROWS = 32_768  # sentences per part


class SentenceVectors:
    """Vectors of distinct sentences in float16 or float32, memory-mapped in parts of ``PART_ROWS``
    rows.
    """

    def __init__(self, sentences: Sequence[str], fingerprint: str, width: int) -> None:
        self.rows = {sentence: row for row, sentence in enumerate(sentences)}
        self.fingerprint = fingerprint
        self.width = width
        self.parts: list[NDArray[Any]] = []

    def make(self, folder: Path) -> None:
        """Map the parts in ``folder``, and compute the missing parts."""

    @property
    def sentences(self) -> list[str]:
        return list(self.rows)

    def encode(self, sentences: Sequence[str]) -> Floats:
        """Return the vectors (n, e) of some of the sentences."""
        rows = np.array([self.rows[sentence] for sentence in sentences], np.int64)
        parts, rows_in_part = np.divmod(rows, PART_ROWS)
        vectors = np.empty((len(rows), self.width), np.float32)
        for part in np.unique(parts):
            is_here = parts == part
            vectors[is_here] = self.parts[part][rows_in_part[is_here]]
        return vectors

    def encode_to_unit(self, sentences: Sequence[str]) -> Floats:
        """Return the vectors scaled to length 1."""
        return unit(self.encode(sentences))

    def second_moment(self) -> Floats:
        """Return the mean (e, e) of t t^T over the vectors t, scaled to length 1."""
        sentences = self.sentences
        total = np.zeros((self.width, self.width))
        for start in range(0, len(sentences), PART_ROWS):
            vectors = self.encode_to_unit(sentences[start : start + PART_ROWS])
            total += vectors.T @ vectors
        mean: Floats = (total / len(sentences)).astype(np.float32)
        return mean


class EncodedVectors(SentenceVectors):
    """The vectors of an encoder, which is released once they are computed."""

    def __init__(self, name: str, encoder: TorchEncoder, sentences: Sequence[str]) -> None:
        super().__init__(sentences, encoder.fingerprint, encoder.width)
        self.name = name
        self.encoder = encoder

    def make(self, folder: Path) -> None:
        """Map the parts in ``folder``, and compute the missing parts."""
        sentences = self.sentences
        with stage(f"encode by {self.name}", len(sentences)) as advance:
            for start in range(0, len(sentences), PART_ROWS):
                path = folder / f"{start:09}.npy"
                of_part = sentences[start : start + PART_ROWS]
                if path.is_file():
                    advance(len(of_part))
                else:
                    vectors = unit(self.encoder.encode(of_part, progress=advance))
                    folder.mkdir(exist_ok=True)
                    with atomic_path(path) as temporary, temporary.open("xb") as file:
                        np.save(file, vectors.astype(np.float16))
                self.parts.append(read_array(path))
        del self.encoder


class JoinedVectors(SentenceVectors):
    """The unit vectors t and u of two teachers side by side: [sqrt(1 - w) t, sqrt(w) u].

    The cosine of two sentences is then (1 - w) cos(t, t') + w cos(u, u'), as in RankCSE.
    """

    def __init__(self, first: SentenceVectors, second: SentenceVectors, weight: float) -> None:
        fingerprint = f"{first.fingerprint}+{second.fingerprint}"
        super().__init__(first.sentences, fingerprint, first.width + second.width)
        self.first = first
        self.second = second
        self.weight = weight

    def encode(self, sentences: Sequence[str]) -> Floats:
        first = self.first.encode_to_unit(sentences) * np.float32(math.sqrt(1 - self.weight))
        second = self.second.encode_to_unit(sentences) * np.float32(math.sqrt(self.weight))
        return np.concatenate([first, second], axis=1)

    encode_to_unit = encode


def teacher_of(models: Mapping[str, SentenceVectors], settings: TeacherSettings) -> SentenceVectors:
    """Return the vectors of the teacher, or of both teachers joined."""
    first = models["teacher"]
    if "second_teacher" not in models:
        return first
    return JoinedVectors(first, models["second_teacher"], settings.second_weight)


def open_vectors(
    name: str,
    examples: TrainingExamples,
    source: str,
    device: str,
    columns: slice,
) -> SentenceVectors:
    """Return the vectors of a model, which are computed later, or those of a ``.npy`` file, whose
    row i belongs to example i.

    The model encodes the texts of the given ``columns``.
    """
    if not name:
        raise UsageError("give a model, or a .npy file of vectors", parameter="teacher")
    if not name.endswith(".npy"):
        sentences = list(dict.fromkeys(itertools.chain.from_iterable(examples.columns[columns])))
        encoder = open_torch_encoder(name, device=device, dtype="auto", rows=len(sentences))
        return EncodedVectors(name, encoder, sentences)
    path = Path(name)
    check_file(path, regular=True)
    manifest = read_manifest(path)
    matrix = read_array(path)
    fingerprint = sha256(path)
    is_of_others = manifest is not None and (manifest.input.sha256, manifest.output.sha256) != (
        examples.sha256,
        fingerprint,
    )
    problem = ""
    if matrix.ndim != 2 or matrix.dtype not in (np.float32, np.float16):
        problem = f"holds {matrix.dtype} {matrix.shape}, not float32 or float16 vectors"
    elif len(matrix) != len(examples):
        problem = f"has {len(matrix):,} vectors, but {source} has {len(examples):,} sentences"
    elif is_of_others or examples.supervised or examples.blank_count:
        problem = f"holds vectors of other sentences than {source}"
    if problem:
        raise UsageError(f"{name} {problem}; embed {source} again, or name the model")
    vectors = SentenceVectors(examples.columns[0], fingerprint, matrix.shape[1])
    for start in range(0, len(matrix), PART_ROWS):
        part = matrix[start : start + PART_ROWS]
        if not np.isfinite(part).all():
            raise UsageError(f"{name} has vectors with NaN or infinite numbers; embed again")
        vectors.parts.append(part)
    return vectors


_PAIRS_AT_ONCE = 1024  # pairs compared with all candidates at once


def mine_negatives(
    examples: TrainingExamples, vectors: SentenceVectors, guide: SentenceVectors, margin: float
) -> TrainingExamples:
    """Return the pairs, each with a hard negative if one exists; given hard negatives are kept.

    The candidates are the positives of other sentences. The hard negative is the candidate nearest
    to the sentence by ``vectors`` that is at least ``margin`` farther than its own positive. A
    candidate that is nearer than the positive by the ``guide`` is skipped as a false negative.
    Equal sentences and their positives are never taken.
    """
    first, second, *negatives = examples.columns
    hard = list(negatives[0]) if negatives else [""] * len(first)
    rows = examples.rows_without_negative if negatives else list(range(len(first)))
    place = {text: number for number, text in enumerate(dict.fromkeys(second))}
    candidates = list(place)
    excluded: dict[str, set[int]] = {}
    for sentence, positive in zip(first, second, strict=True):
        equal = [place[text] for text in (sentence, positive) if text in place]
        excluded.setdefault(sentence, set()).update(equal)

    def cosines(model: SentenceVectors, sentences: Sequence[str]) -> Floats:
        return model.encode_to_unit(sentences) @ units[model].T

    units = {model: model.encode_to_unit(candidates) for model in {vectors, guide}}
    with stage("mine", len(rows)) as advance:
        for start in range(0, len(rows), _PAIRS_AT_ONCE):
            block = rows[start : start + _PAIRS_AT_ONCE]
            lines = np.arange(len(block))
            positives = [place[second[row]] for row in block]
            sentences = [first[row] for row in block]
            near = cosines(vectors, sentences)
            guided = near if guide is vectors else cosines(guide, sentences)
            is_farther = near <= near[lines, positives][:, None] - margin
            is_allowed = is_farther & (guided <= guided[lines, positives][:, None])
            for line, row in enumerate(block):
                is_allowed[line, list(excluded[first[row]])] = False
                nearest = int(np.where(is_allowed[line], near[line], -np.inf).argmax())
                hard[row] = candidates[nearest] if is_allowed[line, nearest] else ""
            advance(len(block))
    missing = sum(not hard[row] for row in rows)
    note(
        f"{len(rows) - missing:,} hard negatives mined; {missing:,} of {len(rows):,} pairs have"
        " none farther than the margin"
    )
    return dataclasses.replace(
        examples, columns=(first, second, hard, *negatives[1:]), layout=TRIPLETS
    )
