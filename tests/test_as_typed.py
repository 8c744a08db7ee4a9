"""What users of sentence-transformers and scikit-learn type first works as they expect."""

import inspect

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import promptcli as pc
from tests.public import PUBLIC
from tests.tiny import SENTENCES

TEXTS = ["It rains.", "The sun shines."]


@pytest.mark.parametrize("name", [name for name in PUBLIC if inspect.isfunction(getattr(pc, name))])
def test_the_source_of_a_public_function_is_its_definition(name):
    function = getattr(pc, name)
    assert inspect.getsource(function).startswith(f"def {name}(")
    assert inspect.getdoc(function)


def test_embed_takes_texts():
    vectors = pc.embed(TEXTS, model="mini-static")
    assert vectors.shape == (2, 256) and vectors.dtype == np.float32
    assert np.array_equal(vectors, pc.load("mini-static").encode(TEXTS))


def test_search_takes_texts():
    assert pc.search("rain", TEXTS, model="mini-static")[0].text == "It rains."


def test_similarity_is_the_same_for_texts_and_for_vectors():
    encoder = pc.load("mini-static")
    by_texts = pc.similarity(TEXTS, TEXTS, model=encoder)
    by_vectors = encoder.similarity(encoder.encode(TEXTS), encoder.encode(TEXTS))
    np.testing.assert_allclose(by_texts, by_vectors, atol=1e-6)


def test_train_and_fit_take_texts_and_a_device(tiny_folder):
    given = {"backbone": str(tiny_folder("bert")), "device": "cpu"}
    trained = pc.train("simcse", data=SENTENCES * 4, batch_size=4, steps=1, **given)
    assert trained.encoder.encode(TEXTS).shape == (2, 16)
    fitted = pc.fit("first-last-tfidf", on=SENTENCES, device="cpu")
    assert fitted.encode(TEXTS).shape[0] == 2


def test_an_encoder_is_a_transformer_of_scikit_learn():
    texts = [f"{word} number {n}" for n in range(10) for word in ("a cat", "the market")]
    labels = ["cat", "market"] * 10
    encoder = pc.load("mini-static")
    assert np.array_equal(clone(encoder).transform(texts), encoder.encode(texts))
    pipeline = make_pipeline(encoder, LogisticRegression()).fit(texts, labels)
    assert pipeline.predict(["a cat", "the market"]).tolist() == ["cat", "market"]
    name = pipeline.steps[0][0]
    grid = GridSearchCV(pipeline, {f"{name}__model": ["mini-static", "mini-multi"]}, cv=2)
    assert grid.fit(texts, labels).best_score_ == 1.0


def test_looking_at_an_encoder_computes_nothing(monkeypatch):
    encoder = pc.load("mini-static")
    monkeypatch.setattr(type(encoder), "encode", lambda *_: pytest.fail("encoded"))
    assert "static/avg" in repr(encoder)
    assert hasattr(encoder, "fit_transform") and not hasattr(encoder, "nothing")
