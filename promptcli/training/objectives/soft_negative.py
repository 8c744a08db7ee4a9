"""``soft-negative``: InfoNCE, and bounds on the distance of the negated sentence (SNCSE)."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor
from torch.nn import functional

from promptcli.backbones.backbone import Backbone
from promptcli.data.layouts import PAIRS, SENTENCES, TRIPLETS
from promptcli.data.negation import negate
from promptcli.data.sources import TrainingExamples
from promptcli.training.methods.sncse import SNCSESettings
from promptcli.training.objectives.contrastive import (
    InfoNCE,
    contrastive_loss,
    excluded_negatives,
)
from promptcli.training.trainable_encoder import Columns

_SHOWN = 5  #: sentences in the plan of a run


class SoftNegative(InfoNCE[SNCSESettings]):
    """z3 is the negated sentence: the third column, or made from the sentence by a rule.

    The rule is ``data.negation.negated``. z3 is not among the negatives of InfoNCE.
    """

    layouts = (TRIPLETS, PAIRS, SENTENCES)

    @classmethod
    def choose(
        cls, examples: TrainingExamples, settings: SNCSESettings, backbone: Backbone
    ) -> TrainingExamples:
        """Return the examples with a negated sentence each; a given one is kept."""
        sentences = examples.columns[0]
        positives = examples.columns[min(1, len(examples.columns) - 1)]
        soft = list(_soft_negatives(examples))
        return dataclasses.replace(examples, columns=(sentences, positives, soft), layout=TRIPLETS)

    @classmethod
    def samples(cls, read: Callable[[], TrainingExamples]) -> dict[str, list[str]]:
        """Return the first sentences with their negated ones."""
        examples = read()
        pairs = zip(examples.columns[0][:_SHOWN], _soft_negatives(examples), strict=False)
        return {"soft_negatives": [f"{sentence} -> {negated}" for sentence, negated in pairs]}

    def contrast(self, views: Sequence[Tensor], columns: Columns) -> Tensor:
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
    given = examples.columns[2] if examples.layout == TRIPLETS else [""] * len(sentences)
    for text, sentence in zip(given, sentences, strict=True):
        yield text or negate(sentence)


def soft_negative_loss(
    first: Tensor, second: Tensor, soft: Tensor, *, alpha: float, beta: float
) -> Tensor:
    """Return the bidirectional margin loss (SNCSE, eq. 6 and 7).

    With D_i = cos(z1_i, z3_i) - cos(z1_i, z2_i), which it keeps between -beta and -alpha, it is the
    mean over i of

        max(0, D_i + alpha) + max(0, -D_i - beta)

    Args:
        first: (n, d), z1.
        second: (n, d), z2, of the positives.
        soft: (n, d), z3, of the negated sentences.
        alpha: How much farther than the positive they are, at least.
        beta: And at most.
    """
    cosine = functional.cosine_similarity
    distance = cosine(first.float(), soft.float()) - cosine(first.float(), second.float())
    return (functional.relu(distance + alpha) + functional.relu(-distance - beta)).mean()
