"""``distillation``: a student learns a teacher's vectors, or its cosines of the batch's pairs."""

import itertools

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.devices import to_device
from promptcli.data.layouts import PAIRS, SENTENCES, TRIPLETS
from promptcli.data.training_data import TrainingExamples
from promptcli.data.vectors.precision import Floats, unit
from promptcli.errors import UsageError, with_count
from promptcli.training.methods.distill import DistillSettings
from promptcli.training.objective import (
    Columns,
    Objective,
    SideTexts,
    TokenizedSides,
    Views,
)
from promptcli.training.objectives.contrastive import (
    Similarity,
    contrastive_loss,
    false_negative_mask,
    nearer_than_positive,
)
from promptcli.training.teacher import teacher_of
from promptcli.training.trainable_encoder import TrainableEncoder

_SAMPLE_SIZE = 6000  # sentences by which the teacher's space is rotated


class Distillation(Objective[DistillSettings]):
    """The distance between the student's vectors, or their cosines, and the teacher's.

    Teacher vectors of another width are mapped into the student's space. The map is computed before
    training and does not learn.
    """

    layouts = (TRIPLETS, PAIRS, SENTENCES)

    def prepare(self, encoder: TrainableEncoder, generator: torch.Generator) -> None:
        settings = self.settings
        self.similarity: Similarity = Similarity.of(settings, encoder.backbone.device)
        self.teacher = teacher_of(encoder.models, settings)
        self.map: Tensor | None = None
        encoder.eval()
        student = encoder.template_encoders[0]
        if settings.target == "vectors" and student.width != self.teacher.width:
            sentences = self.teacher.sentences
            rows = np.random.default_rng(settings.seed).permutation(len(sentences))
            sample = [sentences[row] for row in rows[:_SAMPLE_SIZE]]
            rotation = rotation_between(
                self.teacher.second_moment(),
                unit(self.teacher.encode(sample)),
                unit(student.encode(sample)),
            )
            self.map = to_device(rotation.astype(np.float32), encoder.backbone.device)

    @classmethod
    def choose(
        cls, examples: TrainingExamples, settings: DistillSettings, backbone: Backbone
    ) -> TrainingExamples:
        if settings.contrastive_weight and not examples.supervised:
            raise UsageError(
                "needs pairs or triplets (sent0, sent1, hard_neg); leave it out",
                parameter="contrastive_weight",
            )
        number = settings.target_column
        problem = ""
        if number > len(examples.columns):
            problem = (
                f"does not exist: the examples have {with_count(len(examples.columns), 'column')}"
            )
        elif number > 1 and settings.contrastive_weight:
            problem = "is for other texts, and contrastive_weight compares the columns"
        if problem:
            raise UsageError(f"{number} {problem}", parameter="target_column")
        return examples

    @classmethod
    def columns_of_models(cls, settings: DistillSettings) -> slice:
        column = settings.target_column
        return slice(None) if column == 1 else slice(column - 1, column)

    def sides(self, columns: Columns) -> list[SideTexts]:
        return [(0, column) for column in self._of_student(columns)]

    def _of_student(self, columns: Columns) -> Columns:
        return columns if self.settings.target_column == 1 else columns[:1]

    def views(self, encoder: TrainableEncoder, sides: TokenizedSides, columns: Columns) -> Views:
        """Return the student's vectors (n, d) of each column, then the teacher's, (n, e) or mapped
        to (n, d).
        """
        hidden = encoder.hidden(sides).float()
        student = torch.split(hidden, [len(side.ids) for side in sides])
        teacher_columns = columns[self.columns_of_models(self.settings)]
        texts = list(itertools.chain(*teacher_columns))
        vectors = np.zeros((len(texts), self.teacher.width), np.float32)
        # a missing hard negative stays 0
        vectors[list(map(bool, texts))] = self.teacher.encode(list(filter(None, texts)))
        teacher = to_device(vectors, hidden.device)
        if self.map is not None:
            with torch.autocast(hidden.device.type, enabled=False):
                teacher = teacher @ self.map
        return *student, *torch.split(teacher, [len(column) for column in teacher_columns])

    def loss(self, views: Views, columns: Columns) -> Tensor:
        settings = self.settings
        columns = self._of_student(columns)
        students = []
        teachers = []
        texts = []
        for column, student_view, teacher_view in zip(
            columns, views[: len(columns)], views[len(columns) :], strict=True
        ):
            places = to_device(np.flatnonzero(list(map(bool, column))), student_view.device)
            students.append(student_view[places])
            teachers.append(teacher_view[places])
            texts.append(list(filter(None, column)))  # a missing hard negative is ""
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


def vector_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean of 1 - cos(h_i, t_i) for the student's h and the teacher's t, both (n, d)."""
    return (1 - functional.cosine_similarity(student, teacher)).mean()


def similarity_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean over all pairs i != j of (cos(h_i, h_j) - cos(t_i, t_j))^2: eq. 4 of Tung and
    Mori (2019) with cosines.

    The student's h are (n, d), the teacher's t (n, e).
    """
    h = functional.normalize(student, dim=1)
    t = functional.normalize(teacher, dim=1)
    n = len(student)
    return (h @ h.T - t @ t.T).fill_diagonal_(0).square().sum() / max(1, n * (n - 1))


def rotation_between(moment: Floats, teacher: Floats, student: Floats) -> Floats:
    """Return W = V U (e, d): V (e, k) has the k = min(d, e) leading directions of a moment (e, e),
    and U (k, d) turns them.

    U is orthonormal and minimises |T V U - S|^2 (orthogonal Procrustes) on a sample of the
    ``teacher``'s vectors T (s, e) and the ``student``'s S (s, d). Nothing is centred, so cosines
    stay those of the projection.
    """
    _, eigenvectors = np.linalg.eigh(moment)  # in ascending order of the eigenvalues
    directions = eigenvectors[:, ::-1][:, : student.shape[1]]
    u, _, v = np.linalg.svd((teacher @ directions).T @ student, full_matrices=False)
    rotation: Floats = directions @ (u @ v)
    return rotation
