"""An encoder in the place of a SentenceTransformer: its length, its tokenizer, and what it does not give."""

import numpy as np
import pytest

import promptcli as pc
from promptcli.errors import UsageError

pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")

LONG = "A very long sentence about many things that happen one after the other , again and again ."


def test_length_tokenizer_and_states_of_tokens():
    from promptcli.models.st_module import as_sentence_transformer

    encoder = pc.load("mini", device="cpu", dtype="float32")
    model = as_sentence_transformer(encoder)
    assert model.max_seq_length == encoder.max_length
    assert model.tokenizer.decode(model.tokenizer("A cat.")["input_ids"]) == encoder.tokenizer.decode(
        encoder.tokenizer("A cat.")["input_ids"]
    )
    before = model.encode([LONG])
    model.max_seq_length = 14
    short = pc.Encoder(encoder.recipe.replace(max_length=14), encoder.backbone, encoder.tensors()).encode([LONG])
    assert model.max_seq_length == 14
    np.testing.assert_allclose(model.encode([LONG]), short, atol=1e-6)
    assert np.abs(before - short).max() > 1e-2
    with pytest.raises(UsageError, match="max_length 0 is not allowed"):
        model.max_seq_length = 0
    with pytest.raises(UsageError, match="no token_embeddings; leave out output_value"):
        model.encode([LONG], output_value="token_embeddings")
