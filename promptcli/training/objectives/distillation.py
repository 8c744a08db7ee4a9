"""``distillation``: a student's vectors against a teacher's, or the cosines of all pairs of a batch
against its.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from promptcli.backbones.backbone import Backbone
from promptcli.data.layouts import PAIRS, SENTENCES, TRIPLETS
from promptcli.data.sources import TrainingExamples
from promptcli.data.vectors.formats import Floats
from promptcli.data.vectors.precision import unit
from promptcli.encoder.batching import to_device
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import UsageError, counted
from promptcli.training.methods.distill import DistillSettings
from promptcli.training.objectives.contrastive import (
    contrastive_loss,
    false_negative_mask,
    nearer_than_positive,
)
from promptcli.training.objectives.objective import Columns, Objective
from promptcli.training.objectives.similarity import Similarity
from promptcli.training.teacher import SentenceVectors, teacher_of
from promptcli.training.trainable_encoder import TokenizedSide, TrainableEncoder

_SAMPLE = 6000  # sentences by which the teacher's space is turned


class Distillation(Objective[DistillSettings]):
    """Vectors of another width are projected and turned into the student's space at the start: no
    map is learned.
    """

    layouts = (TRIPLETS, PAIRS, SENTENCES)

    def __init__(
        self, settings: DistillSettings, encoder: TrainableEncoder, generator: torch.Generator
    ) -> None:
        super().__init__(settings, encoder, generator)
        if settings.temperature_rate and not settings.contrastive_weight:
            raise UsageError("needs contrastive_weight, too", parameter="temperature_rate")
        self.similarity: Similarity = Similarity.of(settings, encoder.backbone.device)
        self.teacher = teacher_of(encoder.models, settings)
        self.map: Tensor | None = None
        if settings.target == "vectors" and self._width(encoder) != self.teacher.width:
            start = start_map(self.teacher, encoder.template_encoders[0], settings.seed)
            self.map = to_device(start.astype(np.float32), encoder.backbone.device)

    @staticmethod
    def _width(encoder: TrainableEncoder) -> int:
        """Return the width of the student's vectors: that of a pooling, which may be narrower than
        the backbone.
        """
        encoder.eval()
        return encoder.template_encoders[0].width

    @classmethod
    def choose(
        cls, examples: TrainingExamples, settings: DistillSettings, backbone: Backbone
    ) -> TrainingExamples:
        if settings.contrastive_weight and not examples.supervised:
            raise UsageError(
                "needs pairs or triplets (sent0, sent1, hard_neg); leave it out",
                parameter="contrastive_weight",
            )
        _check_target_column(settings, examples)
        if settings.mine and not settings.contrastive_weight:
            raise UsageError(
                "finds hard negatives, which only a contrastive loss reads; give"
                " contrastive_weight, too",
                parameter="mine",
            )
        return examples

    @classmethod
    def columns_of_models(cls, settings: DistillSettings) -> slice:
        column = settings.target_column
        if column == 1:
            return slice(None)
        return slice(column - 1, column)

    def sides(self, columns: Columns) -> list[tuple[int, Sequence[str]]]:
        return [(0, column) for column in self._of_student(columns)]

    def _of_student(self, columns: Columns) -> Columns:
        if self.settings.target_column == 1:
            return columns
        return columns[:1]

    def views(
        self, encoder: TrainableEncoder, sides: Sequence[TokenizedSide], columns: Columns
    ) -> tuple[Tensor, ...]:
        """Return the student's vectors (n, d) of each column, then the teacher's (n, e), or
        projected (n, d).
        """
        hidden = encoder.hidden(sides).float()
        student = torch.split(hidden, [len(side.rows) for side in sides])
        with torch.autocast(hidden.device.type, enabled=False):
            taught = columns[self.columns_of_models(self.settings)]
            texts = list(itertools.chain.from_iterable(taught))
            vectors = to_device(self._teach(texts), hidden.device)
            if self.map is not None:
                vectors = vectors @ self.map
            teacher = torch.split(vectors, [len(column) for column in taught])
        return *student, *teacher

    def _teach(self, texts: Sequence[str]) -> Floats:
        """Return the teacher's vectors (n, e); of a hard negative that is not there, zeros."""
        present = np.array([bool(text) for text in texts])
        vectors = np.zeros((len(texts), self.teacher.width), np.float32)
        vectors[present] = self.teacher.encode([text for text in texts if text])
        return vectors

    def loss(self, views: Sequence[Tensor], columns: Columns) -> Tensor:
        settings = self.settings
        columns = self._of_student(columns)
        students = []
        teachers = []
        texts = []
        for column, student_view, teacher_view in zip(
            columns, views[: len(columns)], views[len(columns) :], strict=True
        ):
            rows = [row for row, text in enumerate(column) if text]  # a hard negative may be ""
            places = to_device(np.array(rows, np.int64), student_view.device)
            students.append(student_view[places])
            teachers.append(teacher_view[places])
            if rows:
                texts.append([column[row] for row in rows])
        student = torch.cat(students)
        teacher = torch.cat(teachers)
        loss = similarity_distance(student, teacher)
        if settings.target == "vectors":
            loss = vector_distance(student, teacher) + settings.similarity_weight * loss
        if settings.contrastive_weight:
            n = len(columns[0])
            excluded = false_negative_mask(texts, student.device)
            if settings.guide:
                excluded = excluded | nearer_than_positive(teacher[:n], teacher[n:])
            contrast = contrastive_loss(
                student[:n], student[n:], self.similarity, excluded=excluded
            )
            loss = loss + settings.contrastive_weight * contrast
        return loss


def _check_target_column(settings: DistillSettings, examples: TrainingExamples) -> None:
    """Refuse a column for the teacher that examples do not have, or have empty."""
    number = settings.target_column
    if number == 1:
        return
    problem = ""
    if number > len(examples.columns):
        problem = f"does not exist: the examples have {counted(len(examples.columns), 'column')}"
    elif settings.contrastive_weight:
        problem = "is for other texts, and contrastive_weight compares the columns; leave one out"
    elif "" in examples.columns[number - 1]:
        row = examples.columns[number - 1].index("") + 1
        problem = f"is empty in row {row:,} of the examples; fill it, or leave the row out"
    if problem:
        raise UsageError(f"{number} {problem}", parameter="target_column")


def vector_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean of 1 - cos(h_i, t_i), of the student's h and the teacher's t, both (n, d)."""
    return (1 - functional.cosine_similarity(student, teacher)).mean()


def similarity_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean over all pairs i != j of (cos(h_i, h_j) - cos(t_i, t_j))^2 (Tung and Mori
    2019, eq. 4, cosines).

    The student's h are (n, d), the teacher's t (n, e).
    """
    h = functional.normalize(student, dim=1)
    t = functional.normalize(teacher, dim=1)
    n = len(student)
    return (h @ h.T - t @ t.T).fill_diagonal_(0).square().sum() / max(1, n * (n - 1))


def start_map(teacher: SentenceVectors, student: TorchEncoder, seed: int) -> Floats:
    """Return the map (e, d) from the teacher's vectors into the student's space before training."""
    sentences = teacher.sentences
    drawn = np.random.default_rng(seed).permutation(len(sentences))[:_SAMPLE]
    sample = [sentences[row] for row in drawn]
    return rotation_between(
        teacher.second_moment(), unit(teacher.encode(sample)), unit(student.encode(sample))
    )


def rotation_between(moment: Floats, theirs: Floats, own: Floats) -> Floats:
    """Return W = V U (e, d), the k = min(d, e) leading directions V (e, k) of a moment (e, e),
    turned by U (k, d).

    U maps the directions onto d dimensions, orthonormal, and minimises |theirs V U - own|^2
    (orthogonal Procrustes) of a sample, theirs (s, e) and own (s, d). Not centred: cosines stay
    those of the projection.
    """
    _, eigenvectors = np.linalg.eigh(moment)  # by rising eigenvalue
    directions = eigenvectors[:, ::-1][:, : own.shape[1]]
    left, _, right = np.linalg.svd((theirs @ directions).T @ own, full_matrices=False)
    turn: Floats = directions @ (left @ right)
    return turn
