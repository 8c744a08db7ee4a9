"""One sentence as the whole model input that an analysis looks at token by token: never cut, never empty; idf."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from promptcli.backbones.backbone import Backbone
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.pooling.tfidf import fit_idf
from promptcli.errors import UsageError
from promptcli.recipe import Recipe


@dataclass(frozen=True)
class Tokenized:
    """A sentence's input."""

    ids: list[int]  #: t token ids, the special token at either end included
    tokens: list[str]  #: their vocabulary items


def plain_encoder(backbone: Backbone) -> Encoder:
    """Return an encoder without template, for its inputs."""
    return Encoder(Recipe(backbone=backbone.name), backbone, {})


def corpus_idf(encoder: Encoder, corpus: Sequence[str]) -> NDArray[np.float32]:
    """Return idf (v,), counted on the encoder's inputs of the sentences that are not blank.

    Raises:
        UsageError: There is none.
    """
    texts = [sentence for sentence in corpus if sentence.strip()]
    if not texts:
        raise UsageError("there is no sentence to count idf on; give --corpus a file with one sentence a line, or demo")
    counted: NDArray[np.float32] = fit_idf(encoder.inputs(texts).rows, len(encoder.backbone.token_rows)).numpy()
    return counted


def tokenize(encoder: Encoder, sentence: str) -> Tokenized:
    """Return a sentence's input.

    Raises:
        UsageError: No tokens in it, or more than the backbone has positions for.
    """
    inputs = encoder.inputs([sentence])
    backbone, ids = encoder.backbone, inputs.rows[0]
    if inputs.truncated[0]:
        pieces = encoder.pieces([sentence])
        count = len(backbone.tokenizer.encode(pieces)[0])
        raise UsageError(
            f"the sentence has {count} tokens, and backbone {backbone.name!r} has room for"
            f" {encoder.max_length - encoder.template.length}; give a shorter one: {sentence[:40]!r}..."
        )
    if len(ids) == encoder.template.length:
        raise UsageError(f"the sentence {sentence[:40]!r} has no tokens to look at; give one with words")
    return Tokenized(ids, [backbone.tokenizer.text(token) for token in ids])
