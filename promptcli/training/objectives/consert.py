"""``nt-xent`` and ``nt-xent-joint``: ConSERT's loss over two augmented views, alone or with
labelled pairs' classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from promptcli.backbones.states import Batch
from promptcli.data.layouts import SENTENCES
from promptcli.training.methods.consert import ADVERSARIAL, AugmentationSettings, JointSettings
from promptcli.training.objective import Columns, SideTexts, TokenizedSides, Views
from promptcli.training.objectives.contrastive import InfoNCE, Similarity, excluded_negatives
from promptcli.training.objectives.pairs import PairClassifier
from promptcli.training.trainable_encoder import TrainableEncoder

#: Takes a batch and a rate, and returns the batch of the pass. It changes the same share of every
#: sentence, floor(rate x n) of n, drawn by torch's global generator (ConSERT, section 3.2).
Augmentation = Callable[[Batch, float], Batch]


def _shuffle(batch: Batch, rate: float) -> Batch:
    """Permute the positions of all tokens, specials included; the rate is not used."""
    is_real = batch.real()
    # padding keeps its place at the end
    draws = torch.rand(is_real.shape, device=is_real.device).masked_fill(~is_real, 2.0)
    return replace(batch, position_ids=draws.argsort(1))


def _token_cutoff(batch: Batch, rate: float) -> Batch:
    """Set whole tokens to 0, specials included."""
    return replace(batch, augment=lambda output: _cut(output, batch.real(), rate, batch.lengths))


def _feature_cutoff(batch: Batch, rate: float) -> Batch:
    """Set whole features to 0, drawn for each sentence."""

    def cut(output: Tensor) -> Tensor:
        features = output.transpose(1, 2)  # (n, d, t)
        is_eligible = torch.ones_like(features[..., 0], dtype=torch.bool)
        return _cut(features, is_eligible, rate, is_eligible.sum(1)).transpose(1, 2)

    return replace(batch, augment=cut)


def _dropout(batch: Batch, rate: float) -> Batch:
    """Set single values to 0; the others are not scaled, as in the published code."""

    def cut(output: Tensor) -> Tensor:
        elements = output.flatten(1).unsqueeze(2)  # (n, t d, 1)
        is_eligible = batch.real().unsqueeze(2).expand_as(output).flatten(1)
        return _cut(elements, is_eligible, rate, is_eligible.sum(1)).view_as(output)

    return replace(batch, augment=cut)


def _cut(rows: Tensor, is_eligible: Tensor, rate: float, counts: Tensor) -> Tensor:
    """Return ``rows`` (n, k, m), of whose eligible ones (n, k) floor(rate x count) are drawn and
    set to 0.
    """
    draws = torch.rand(is_eligible.shape, device=is_eligible.device).masked_fill(~is_eligible, 2.0)
    ranks = draws.argsort(1).argsort(1)
    number = (rate * counts.double()).long()
    is_cut = ranks < number.unsqueeze(1)
    return rows.masked_fill(is_cut.unsqueeze(2), 0.0)


#: The augmentations by their names in the settings.
AUGMENTATIONS: dict[str, Augmentation] = {
    "none": lambda batch, rate: batch,
    "shuffle": _shuffle,
    "token-cutoff": _token_cutoff,
    "feature-cutoff": _feature_cutoff,
    "dropout": _dropout,
}


class Adversary:
    """``adversarial``: the embeddings of each token move by a fixed length along the gradient of a
    supervised loss.

    The gradient is taken in one pass, and the embeddings move in the next one. The token ids of a
    pass identify it, so gradient caching may repeat it.
    """

    def __init__(self) -> None:
        self._leaves: dict[bytes, Tensor] = {}
        self._moves: dict[bytes, Tensor] = {}

    def watch(self, batch: Batch) -> Batch:
        """Return the batch of a pass; ``compute_moves`` takes the gradient of its embeddings."""

        def add(output: Tensor) -> Tensor:
            leaf = self._leaves.setdefault(_key(batch), torch.zeros_like(output).requires_grad_())
            return output + leaf

        return replace(batch, augment=add)

    def compute_moves(self, loss: Tensor, length: float) -> None:
        """Compute the moves from the gradient g of the watched passes' loss: g / |g| x length for
        each token.
        """
        gradients = torch.autograd.grad(loss, list(self._leaves.values()), retain_graph=True)
        for key, gradient in zip(self._leaves, gradients, strict=True):
            norm = gradient.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(gradient.dtype).tiny)
            self._moves[key] = length * gradient / norm

    def move(self, batch: Batch) -> Batch:
        """Return the batch of a pass over the same rows, with moved embeddings."""
        return replace(batch, augment=lambda output: output + self._moves[_key(batch)])


def _key(batch: Batch) -> bytes:
    return batch.host_ids().tobytes()


class NTXent(InfoNCE[AugmentationSettings]):
    """NT-Xent over two passes of each sentence, each with its own augmentation."""

    layouts = (SENTENCES,)

    def sides(self, columns: Columns) -> list[SideTexts]:
        return [(0, columns[0])]

    def views(self, encoder: TrainableEncoder, sides: TokenizedSides, columns: Columns) -> Views:
        return tuple(
            encode_augmented(encoder, sides, name, self.settings)
            for name in self.settings.augmentations
        )

    def contrast(self, views: Views, columns: Columns) -> Tensor:
        return _contrast(views, columns[0], self.settings, self.similarity)


class JointNTXent(PairClassifier[JointSettings]):
    """Cross-entropy over [u; v; |u - v|; max(u, v)^2], plus a share of NT-Xent of the premises and
    of the hypotheses.
    """

    blocks = 4

    def prepare(self, encoder: TrainableEncoder, generator: torch.Generator) -> None:
        super().prepare(encoder, generator)
        self.similarity: Similarity = Similarity.of(self.settings, encoder.backbone.device)

    def features(self, first: Tensor, second: Tensor) -> list[Tensor]:
        return [*super().features(first, second), torch.maximum(first, second).square()]

    def views(self, encoder: TrainableEncoder, sides: TokenizedSides, columns: Columns) -> Views:
        """Return the logits (n, 3) of the plain vectors, and both views of premises and of
        hypotheses, (n, d) each.
        """
        settings = self.settings
        adversary = Adversary()
        is_watched = ADVERSARIAL in settings.augmentations
        plain = encoder.hidden(sides, adversary.watch if is_watched else None)
        logits = self.classify(plain)
        if is_watched:
            adversary.compute_moves(super().loss([logits], columns), settings.perturbation)
        views = [logits]
        for name in settings.augmentations:
            if name == "none":
                view = plain
            elif name == ADVERSARIAL:
                view = encoder.hidden(sides, adversary.move)
            else:
                view = encode_augmented(encoder, sides, name, settings)
            views += view.chunk(2)  # of premises and of hypotheses
        return tuple(views)

    def loss(self, views: Views, columns: Columns) -> Tensor:
        logits, *vectors = views
        loss = super().loss([logits], columns)
        settings = self.settings
        for at_width in self.at_widths(vectors):
            premises = _contrast(at_width[::2], columns[0], settings, self.similarity)
            hypotheses = _contrast(at_width[1::2], columns[1], settings, self.similarity)
            loss = loss + settings.contrastive_weight * (premises + hypotheses)
        return loss


def encode_augmented(
    encoder: TrainableEncoder,
    sides: TokenizedSides,
    name: str,
    settings: AugmentationSettings,
) -> Tensor:
    """Return the vectors (n, d) float32 of augmented sentences."""
    return encoder.hidden(sides, lambda batch: AUGMENTATIONS[name](batch, settings.cutoff_rate))


def _contrast(
    views: Views,
    sentences: Sequence[str],
    settings: AugmentationSettings,
    similarity: Similarity,
) -> Tensor:
    first, second = views
    excluded = excluded_negatives(settings, first, second, [sentences])
    return nt_xent(first, second, similarity, excluded=excluded)


def nt_xent(
    first: Tensor, second: Tensor, similarity: Similarity, *, excluded: Tensor | None = None
) -> Tensor:
    """Return NT-Xent over 2n vectors: CE(a vs [b, a without itself]) + CE(b vs [a, b without
    itself]).

    Each term is the mean over i of -log( exp s(a_i, b_i) / (sum_j exp s(a_i, b_j) + sum_{j != i}
    exp s(a_i, a_j)) ) (ConSERT, eq. 1; the published code adds both terms).

    Args:
        first: (n, d), a.
        second: (n, d), b.
        similarity: s, cos(x, y) / tau.
        excluded: (n, n) bool, True if sentence j does not count against sentence i.
    """
    n = len(first)
    itself = torch.eye(n, dtype=torch.bool, device=first.device)
    if excluded is None:
        excluded = torch.zeros_like(itself)
    mask = torch.cat([excluded, excluded | itself], dim=1)
    labels = torch.arange(n, device=first.device)

    def cross_entropy(anchors: Tensor, candidates: Tensor) -> Tensor:
        logits = torch.cat([similarity(anchors, candidates), similarity(anchors, anchors)], dim=1)
        return functional.cross_entropy(logits.masked_fill(mask, float("-inf")), labels)

    return cross_entropy(first, second) + cross_entropy(second, first)
