"""InfoNCE, PromCSE's hinge, and the objectives of CoT-BERT, RankCSE, CSE-SFP and SNCSE.

The base class and the formulas that several objectives use come first. Then comes the objective of
each paper, followed by the formula that only this paper has.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from promptcli.backbones.backbone import Backbone
from promptcli.backbones.devices import to_device
from promptcli.backbones.ragged_ids import RaggedIds
from promptcli.backbones.states import Batch, HiddenStates
from promptcli.data.layouts import PAIRS, SENTENCES, TRIPLETS
from promptcli.data.negation import negate
from promptcli.data.training_data import TrainingExamples
from promptcli.encoder.batching import make_batch
from promptcli.encoder.encoder import bias_batch
from promptcli.encoder.template import Template
from promptcli.errors import UsageError
from promptcli.recipe import SLOT
from promptcli.training.methods.cotbert import CoTBERTSettings
from promptcli.training.methods.csesfp import CSESFPSettings
from promptcli.training.methods.method import ContrastiveSettings, InBatchSettings
from promptcli.training.methods.rankcse import RankCSESettings
from promptcli.training.methods.sncse import SNCSESettings
from promptcli.training.objective import (
    Columns,
    LearnableScalar,
    Objective,
    SideTexts,
    TokenizedSides,
    Views,
)
from promptcli.training.teacher import SentenceVectors, teacher_of
from promptcli.training.trainable_encoder import BiasInputs, TrainableEncoder

_SAMPLE_COUNT = 5  #: sentences in the plan of a run
#: Lower bound of a learned temperature, as in CLIP (Radford et al. 2021, 2.5), unless it
#: starts there.
MIN_TEMPERATURE = 0.01
#: The settings that a contrastive objective reads.
Settings = TypeVar("Settings", bound=ContrastiveSettings)


class Similarity(LearnableScalar):
    """The cosine over a fixed or learned temperature (CLIP, 2.3)."""

    def __init__(
        self, temperature: float, rate: float = 0.0, *, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__("temperature", temperature, rate, least=MIN_TEMPERATURE, device=device)

    @classmethod
    def of(cls, settings: InBatchSettings, device: torch.device) -> "Similarity":
        return cls(settings.temperature, settings.temperature_rate, device=device)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return s(first_i, second_j), (n, m) float32, of vectors (n, d) and (m, d)."""
        return cosines(first, second) / self.value


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return cos(first_i, second_j), (n, m) float32, of vectors (n, d) and (m, d)."""
    first = functional.normalize(first.float(), dim=1)
    second = functional.normalize(second.float(), dim=1)
    return first @ second.T


class InfoNCE(Objective[Settings]):
    """InfoNCE over two views.

    z1 and z2 encode one sentence under two dropout masks, or the two sentences of a pair. If the
    method has two templates, each view has its own.

    A batch passes through four methods: ``sides`` chooses the texts and their templates, ``views``
    encodes them to z1, z2 and z3, ..., ``loss`` adds the losses of all widths, and ``contrast`` is
    the formula at one width. The objective of a paper overrides those in which it differs.
    ``contrast`` may add a term at each width, and ``loss`` a term that counts once. ``views`` sees
    the examples of one process, ``loss`` those of all processes.
    """

    layouts: ClassVar[tuple[tuple[str, ...], ...]] = (TRIPLETS, PAIRS, SENTENCES)

    def prepare(self, encoder: TrainableEncoder, generator: torch.Generator) -> None:
        self.similarity: Similarity = Similarity.of(self.settings, encoder.backbone.device)
        # after the head: head(h) - head(h_hat); before it: head(h - h_hat)
        self._after_head = encoder.configured.variant.denoising_place == "head"
        self.guide = encoder.models.get("mask_guide")
        #: None: the method does not denoise.
        self.bias_inputs: BiasInputs | None = None
        place = self.settings.denoise("hidden")
        if place != "none":
            self.bias_inputs = functools.partial(bias_batch, raw_positions=place == "hidden:code")

    def views(self, encoder: TrainableEncoder, sides: TokenizedSides, columns: Columns) -> Views:
        """Return z1, z2 and, with hard negatives or a third view, z3, ..., each (n, d) float32.

        h_hat is subtracted if the method denoises, before the head or after it.
        """
        hidden = encoder.hidden(sides)
        if self.bias_inputs is not None and not self._after_head:
            hidden = hidden - encoder.bias(sides, self.bias_inputs)
        vectors = encoder.project(hidden)
        if self.bias_inputs is not None and self._after_head:
            vectors = vectors - encoder.project(encoder.bias(sides, self.bias_inputs))
        return self.split_by_side(vectors, sides, columns)

    def split_by_side(self, vectors: Tensor, sides: TokenizedSides, columns: Columns) -> Views:
        """Return the vectors of all sides, (sum n, d), as z1, z2, z3, ..., each (n, d).

        Side i encodes column i if the data have it. From the third column on, a side leaves out
        the empty cells; their rows become 0.
        """
        views = list(torch.split(vectors, [len(side.ids) for side in sides]))
        for number, texts in enumerate(columns[2:], 2):
            if len(views[number]) < len(texts):
                has_vector = to_device(np.array(list(map(bool, texts))), vectors.device)
                zeros = vectors.new_zeros(len(texts), vectors.size(1))
                views[number] = zeros.masked_scatter(has_vector.unsqueeze(1), views[number])
        return tuple(views)

    def sides(self, columns: Columns) -> list[SideTexts]:
        """Return each side: the number of its template, from 0, and its texts.

        The first side is the sentences under the first template. The other sides are under the
        second template: the positives (without pairs, the sentences again), and each column of hard
        negatives without its empty cells.
        """
        first = columns[0]
        second = columns[1] if len(columns) > 1 else first
        negatives = [(1, list(filter(None, hard))) for hard in columns[2:]]
        return [(0, first), (1, second), *negatives]

    def loss(self, views: Views, columns: Columns) -> Tensor:
        """Return the contrastive loss of the complete batch, summed over the widths."""
        losses = [self.contrast(cut_views, columns) for cut_views in self.at_widths(views)]
        return torch.stack(losses).sum()

    def contrast(self, views: Views, columns: Columns) -> Tensor:
        """Return the contrastive loss at one width.

        Every hard negative is a candidate for every sentence. An empty cell adds no candidate; its
        sentence stays. An objective whose third view encodes no column overrides this method.
        """
        first, second, *negatives = views
        vectors = [second]
        texts = list[str]()  # of the hard negatives that exist
        for view, column in zip(negatives, columns[2:], strict=True):
            present = [row for row, text in enumerate(column) if text]
            vectors.append(view[present] if len(present) < len(view) else view)
            texts += filter(None, column)
        candidates = torch.cat(vectors)
        compared = [*columns[:2], texts] if texts else columns[:2]
        settings = self.settings
        excluded = excluded_negatives(settings, first, candidates, compared, self.guide)
        loss = contrastive_loss(first, candidates, self.similarity, excluded=excluded)
        if settings.hinge_weight and texts:
            hinge = hinge_loss(first, candidates, margin=settings.hinge_margin, excluded=excluded)
            loss = loss + settings.hinge_weight * hinge
        return loss


def contrastive_loss(
    first: Tensor, candidates: Tensor, similarity: Similarity, *, excluded: Tensor | None = None
) -> Tensor:
    """Return the in-batch contrastive loss, InfoNCE (SimCSE, eq. 1 and 5).

    It is the mean over i, in one direction only, of

        -log( exp s(z1_i, z2_i) / [sum_j exp s(z1_i, z2_j) + sum_l exp s(z1_i, z3_l)] )

    Args:
        first: (n, d), z1.
        candidates: (m, d), z2 and then the hard negatives z3, m >= n.
        similarity: s, cos(a, b) / tau.
        excluded: (n, m) bool, True if candidate j does not count against sentence i, see
            ``excluded_negatives``. The diagonal must be False.
    """
    logits = similarity(first, candidates)
    if excluded is not None:
        logits = logits.masked_fill(excluded, float("-inf"))
    return functional.cross_entropy(logits, torch.arange(len(first), device=first.device))


def hinge_loss(
    first: Tensor, candidates: Tensor, *, margin: float, excluded: Tensor | None = None
) -> Tensor:
    """Return the energy-based hinge (PromCSE, eq. 5).

    It is the mean over i of

        max(0, margin - cos(z1_i, z2_i) + max_j cos(z1_i, c_j))

    c_j are the candidates other than i's positive. If several are nearest, they share the gradient.

    Args:
        first: (n, d), z1.
        candidates: (m, d), z2 and then the hard negatives, m >= n.
        margin: The cosine by which the positive should be nearer.
        excluded: (n, m) bool, True if candidate j does not count against sentence i.
    """
    near = cosines(first, candidates)
    is_positive = torch.eye(*near.shape, dtype=torch.bool, device=near.device)
    negatives = near.masked_fill(is_positive, float("-inf"))
    if excluded is not None:
        negatives = negatives.masked_fill(excluded, float("-inf"))
    return functional.relu(margin - near.diagonal() + negatives.amax(1)).mean()


def excluded_negatives(
    settings: ContrastiveSettings,
    first: Tensor,
    candidates: Tensor,
    columns: Sequence[Sequence[str]],
    guide: SentenceVectors | None = None,
) -> Tensor | None:
    """Return which candidates do not count against which sentence, (n, m) bool; None: all count.

    ``mask_duplicates`` excludes candidates with an equal sentence or positive. ``mask_false``
    excludes candidates that are nearer to a sentence than its positive by ``mask_margin``, by the
    vectors themselves (Qwen3-Embedding) or by a guide's (GISTEmbed).

    Args:
        settings: ``mask_duplicates``, ``mask_false`` and ``mask_margin``.
        first: (n, d), z1.
        candidates: (m, d), z2, then the hard negatives.
        columns: The texts of z1, of z2 if they differ, and of the hard negatives.
        guide: The vectors that decide if ``mask_false`` is "guide".
    """
    masks = []
    if settings.mask_duplicates and len(set().union(*columns)) < sum(map(len, columns)):
        masks.append(false_negative_mask(columns, first.device))
    if settings.mask_false == "self":
        with torch.no_grad():
            masks.append(nearer_than_positive(first, candidates, settings.mask_margin))
    elif guide is not None:
        sentences, *candidate_texts = columns
        anchors = to_device(guide.encode(sentences), first.device)
        guided = to_device(guide.encode(list(itertools.chain(*candidate_texts))), first.device)
        masks.append(nearer_than_positive(anchors, guided, settings.mask_margin))
    return functools.reduce(torch.logical_or, masks) if masks else None


def nearer_than_positive(anchors: Tensor, candidates: Tensor, margin: float = 0.0) -> Tensor:
    """Return the mask (n, m) of candidates j with cos(a_i, c_j) > cos(a_i, c_i) + margin.

    The anchors are (n, e), the candidates (m, e); candidate i is the positive of anchor i. The
    margin is at least 0, so the diagonal is False.
    """
    near = cosines(anchors, candidates)
    return near > near.diagonal().unsqueeze(1) + margin


def false_negative_mask(
    columns: Sequence[Sequence[str]],
    device: torch.device = torch.device("cpu"),  # noqa: B008
) -> Tensor:
    """Return the mask of false negatives, (n, n + k): of the positives, then the hard negatives.

    Entry (i, j) is True if candidate j must not count against sentence i: if it is i's sentence or
    positive, and for a positive also if i and j have the same sentence.
    """
    number_of = {text: number for number, text in enumerate(itertools.chain(*columns))}
    ids = [np.array([number_of[text] for text in column]) for column in columns]
    first = ids[0]
    second = ids[1] if len(ids) > 1 else first
    equal = np.equal.outer
    positives = equal(first, first) | equal(first, second) | equal(second, second)
    np.fill_diagonal(positives, val=False)
    negatives = [equal(first, hard) | equal(second, hard) for hard in ids[2:]]
    return to_device(np.concatenate([positives, *negatives], axis=1), device)


def padded_bias_batch(template: Template, lengths: Sequence[int], backbone: Backbone) -> Batch:
    """Return the template with k times [PAD], attended to, in place of a sentence, one input for
    each k (CoT-BERT).
    """
    pad = backbone.tokenizer.pad
    ids = RaggedIds.of([*template.left, *[pad] * length, *template.right] for length in lengths)
    masks = template.mask_positions(ids.lengths)
    return make_batch(ids, masks, pad, backbone.device, backbone.max_tokens)


class NegativeView(InfoNCE[CoTBERTSettings]):
    """InfoNCE over two views that affirm the sentence and one that negates it (CoT-BERT).

    With denoising, each view's bias is subtracted from it: the vector of the view's template with
    [PAD] in place of each token of the sentence.
    """

    layouts = (SENTENCES,)

    def prepare(self, encoder: TrainableEncoder, generator: torch.Generator) -> None:
        super().prepare(encoder, generator)
        if self.settings.denoising:
            self.bias_inputs = padded_bias_batch

    def sides(self, columns: Columns) -> list[SideTexts]:
        return [(view, columns[0]) for view in range(3)]

    def contrast(self, views: Views, columns: Columns) -> Tensor:
        """Return the extended InfoNCE of the batch.

        With ``negatives_within`` N, each group of N examples is contrasted separately, and the
        losses are averaged (the published code's replicas).
        """
        # no guide: it needs pairs, and this objective reads sentences
        excluded = excluded_negatives(self.settings, views[0], views[1], columns)
        n = len(columns[0])
        group = self.settings.negatives_within or n
        losses = []
        for start in range(0, n, group):
            rows = slice(start, start + group)
            first, second, negative = (view[rows] for view in views)
            of_group = None if excluded is None else excluded[rows, rows]
            losses.append(
                negative_view_loss(first, second, negative, self.similarity, excluded=of_group)
            )
        return torch.stack(losses).mean()


def negative_view_loss(
    first: Tensor,
    second: Tensor,
    negative: Tensor,
    similarity: Similarity,
    *,
    excluded: Tensor | None = None,
) -> Tensor:
    """Return the extended InfoNCE (CoT-BERT).

    It is the mean over i of

        -log( exp s(z1_i, z2_i)
              / sum_j [exp s(z1_i, z2_j) + exp s(z1_i, z3_j) + exp s(z2_i, z3_j)] )

    Args:
        first: (n, d), z1.
        second: (n, d), z2.
        negative: (n, d), z3; all 2n cosines to it are negatives, the sentence's own included.
        similarity: s, cos(a, b) / tau.
        excluded: (n, n) bool, True if z2_j does not count against z1_i, see
            ``excluded_negatives``. z3 always counts.
    """
    positives = similarity(first, second)
    if excluded is not None:
        positives = positives.masked_fill(excluded, float("-inf"))
    negatives = [similarity(first, negative), similarity(second, negative)]
    logits = torch.cat([positives, *negatives], dim=1)
    return functional.cross_entropy(logits, torch.arange(len(first), device=first.device))


class TeacherRanking(InfoNCE[RankCSESettings]):
    """InfoNCE, and two losses of rankings (RankCSE): a sentence's first view should rank the second
    views of the batch as a teacher does.

    The loss is InfoNCE + consistency_weight * consistency + ranking_weight * (ListNet or ListMLE).
    The teacher's cosines are those of its full vectors at every width.
    """

    layouts = (SENTENCES,)

    def prepare(self, encoder: TrainableEncoder, generator: torch.Generator) -> None:
        super().prepare(encoder, generator)
        self.teacher = teacher_of(encoder.models, self.settings)

    def views(self, encoder: TrainableEncoder, sides: TokenizedSides, columns: Columns) -> Views:
        """Return z1 and z2, (n, d) float32, and the teacher's vectors (n, e)."""
        views = super().views(encoder, sides, columns)
        teacher = self.teacher.encode(columns[0])
        return *views, to_device(teacher, views[0].device)

    def loss(self, views: Views, columns: Columns) -> Tensor:
        """Return InfoNCE, consistency of the two views (eq. 6) and ranking, summed over widths."""
        settings = self.settings
        first, second, teacher_vectors = views
        teacher = cosines(teacher_vectors, teacher_vectors)
        loss = torch.zeros((), device=first.device)
        for z1, z2 in self.at_widths([first, second]):
            logits = self.similarity(z1, z2)
            if settings.ranking == "listnet":
                ranking_loss = list_net(logits, teacher / settings.teacher_temperature)
            else:
                ranking_loss = list_mle(logits, teacher)
            loss = loss + self.contrast([z1, z2], columns)
            loss = loss + settings.consistency_weight * consistency(logits)
            loss = loss + settings.ranking_weight * ranking_loss
        return loss


def consistency(logits: Tensor) -> Tensor:
    """Return how far two views' distributions over the batch differ (RankCSE, eq. 6).

    With P_i = softmax over j of s(z1_i, z2_j), Q_i = softmax over j of s(z2_i, z1_j) and their mean
    M_i, it is the mean over i of the Jensen-Shannon divergence

        [ KL(P_i || M_i) + KL(Q_i || M_i) ] / 2

    ``logits`` (n, n) are s(z1_i, z2_j), cosines over a temperature.
    """
    log_p = logits.log_softmax(1)
    log_q = logits.T.log_softmax(1)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    kl_p = (log_p.exp() * (log_p - log_m)).sum(1).mean()
    kl_q = (log_q.exp() * (log_q - log_m)).sum(1).mean()
    return 0.5 * (kl_p + kl_q)


def list_net(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return the ListNet loss: the teacher's top-one probabilities against the student's.

    With T_ij and S_ij the softmax over j other than i, it is the mean over i of

        -sum_j T_ij log S_ij

    Both are (n, n) cosines over a temperature. The loss of a single sentence is 0.
    """
    n = len(logits)
    if n == 1:
        return logits.sum() * 0.0
    itself = torch.eye(n, dtype=torch.bool, device=logits.device)
    probabilities = teacher.masked_fill(itself, float("-inf")).softmax(1)
    log_student = logits.masked_fill(itself, float("-inf")).log_softmax(1)
    return -(probabilities * log_student.masked_fill(itself, 0.0)).sum() / n


def list_mle(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return the ListMLE loss: -log of the likelihood of the teacher's order of the batch.

    With o the teacher's order of the batch for sentence i, itself included, it is the mean over i
    and the positions p of

        -log( exp s(i, o_p) / sum_{q >= p} exp s(i, o_q) )

    The paper sums over the positions. The default weights come from an implementation that takes
    the mean.
    """
    ordered = logits.gather(1, teacher.argsort(dim=1, descending=True, stable=True))
    remaining = ordered.flip(1).logcumsumexp(1).flip(1)  # log of the sum over q >= p
    return (remaining - ordered).mean()


class SinglePass(InfoNCE[CSESFPSettings]):
    """InfoNCE over two views that are two clauses of one template (CSE-SFP).

    The first comma after [X] separates the clauses. z1 is the state of the template's last token,
    as at test, and z2 that of the last token before the comma.
    """

    layouts = (SENTENCES,)

    def prepare(self, encoder: TrainableEncoder, generator: torch.Generator) -> None:
        super().prepare(encoder, generator)
        template = encoder.template_encoders[0].template
        before, after = template.text.split(SLOT)
        words, comma, _ = after.partition(",")
        clause = Template(f"{before}{SLOT}{words}", encoder.backbone.tokenizer)
        if not comma or template.right[: len(clause.right)] != clause.right:
            raise UsageError(
                f"template {template.text!r} does not have two stages separated by a comma:"
                " '[X] means in one word, it can be summarized as'"
            )
        self._tokens_after_first_clause = len(template.right) - len(clause.right)

    def sides(self, columns: Columns) -> list[SideTexts]:
        return [(0, columns[0])]

    def views(self, encoder: TrainableEncoder, sides: TokenizedSides, columns: Columns) -> Views:
        """Return z1 and z2, (n, d): the states at the ends of the second and the first clause."""
        pooling = encoder.template_encoders[0].pooling

        def read(batch: Batch, hidden: HiddenStates) -> Tensor:
            rows = torch.arange(len(batch.ids), device=batch.ids.device)
            last = batch.lengths - 1
            ends = (last, last - self._tokens_after_first_clause)
            tokens = pooling.read(hidden)
            return torch.stack([tokens[rows, end] for end in ends], dim=1)

        return encoder.hidden(sides, read=read).unbind(1)


class SoftNegative(InfoNCE[SNCSESettings]):
    """InfoNCE, and bounds on z3, the negated sentence (SNCSE).

    z3 encodes the third column, or the sentence negated by the rule ``data.negation.negate``. z3 is
    not among the negatives of InfoNCE.
    """

    layouts = (TRIPLETS, PAIRS, SENTENCES)

    @classmethod
    def choose(
        cls, examples: TrainingExamples, settings: SNCSESettings, backbone: Backbone
    ) -> TrainingExamples:
        """Return the examples, each with a negated sentence; a given one is kept."""
        sentences = examples.columns[0]
        positives = examples.columns[min(1, len(examples.columns) - 1)]
        soft = list(_soft_negatives(examples))
        return dataclasses.replace(examples, columns=(sentences, positives, soft), layout=TRIPLETS)

    @classmethod
    def samples(cls, examples: TrainingExamples) -> dict[str, list[str]]:
        """Return the first sentences with their negated ones."""
        pairs = zip(examples.columns[0][:_SAMPLE_COUNT], _soft_negatives(examples), strict=False)
        return {"soft_negatives": [f"{sentence} -> {negated}" for sentence, negated in pairs]}

    def contrast(self, views: Views, columns: Columns) -> Tensor:
        """Return InfoNCE of z1 and z2, and the bounds on z3, at one width."""
        settings = self.settings
        first, second, soft = views
        excluded = excluded_negatives(settings, first, second, columns[:2], self.guide)
        loss = contrastive_loss(first, second, self.similarity, excluded=excluded)
        bounds = soft_negative_loss(
            first, second, soft, alpha=settings.soft_alpha, beta=settings.soft_beta
        )
        return loss + settings.soft_weight * bounds


def _soft_negatives(examples: TrainingExamples) -> Iterator[str]:
    """Yield the negated sentence of each example: a given one, else by rule."""
    sentences = examples.columns[0]
    negated = examples.columns[2] if examples.layout == TRIPLETS else [""] * len(sentences)
    for text, sentence in zip(negated, sentences, strict=True):
        yield text or negate(sentence)


def soft_negative_loss(
    first: Tensor, second: Tensor, soft: Tensor, *, alpha: float, beta: float
) -> Tensor:
    """Return the bidirectional margin loss (SNCSE, eq. 6 and 7).

    It keeps D_i = cos(z1_i, z3_i) - cos(z1_i, z2_i) between -beta and -alpha, as the mean over i of

        max(0, D_i + alpha) + max(0, -D_i - beta)

    Args:
        first: (n, d), z1.
        second: (n, d), z2, of the positives.
        soft: (n, d), z3, of the negated sentences.
        alpha: The least cosine difference between the positive and the negated sentence.
        beta: The largest cosine difference.
    """
    cosine = functional.cosine_similarity
    distance = cosine(first.float(), soft.float()) - cosine(first.float(), second.float())
    return (functional.relu(distance + alpha) + functional.relu(-distance - beta)).mean()
