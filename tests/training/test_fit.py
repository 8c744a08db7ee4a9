"""``fit`` makes a model from sentences that every command takes, and refuses the rest."""

import numpy as np
import pytest

import promptcli as pc
from promptcli.data import demo
from promptcli.errors import NotFoundError
from promptcli.models.entries import Entry
from promptcli.recipe import RECIPES, Recipe
from promptcli.training.fitting import FITS, fit_recipe
from tests.comparing import gap, refusal, refused
from tests.tiny import SENTENCES

MANY = SENTENCES + [f"{one} {other}" for one in SENTENCES for other in SENTENCES[:3]]


def test_fit_reads_the_recipe(tiny_backbone):
    backbone = tiny_backbone("bert")
    both = Recipe(pooling="first-last/tfidf", transforms=("whitening:4",))
    fitted = fit_recipe(both, [*MANY, "", "  "], backbone=backbone)
    assert fitted.provenance["fitted_on"] == {"source": "a list", "sentences": len(MANY)}
    vectors = fitted.encoder.encode(MANY)
    assert vectors.shape == (len(MANY), 4)
    # whitened over the TF-IDF vectors
    assert gap(np.cov(vectors, rowvar=False), np.eye(4)) < 1e-3
    assert set(fitted.encoder.tensors()) == {"tfidf.idf", "whitening.mean", "whitening.matrix"}
    assert set(FITS) == {"tfidf", "tfidf:word", "whitening", "all-but-the-top", "spectral", "flow"}


@pytest.mark.parametrize(
    ("recipe", "sentences", "message"),
    [
        (Recipe(), MANY, "nothing to fit"),
        (Recipe(transforms=("whitening",)), ["", " "], "no sentence to fit on"),
        (Recipe(transforms=("whitening",)), MANY[:3], "span"),
    ],
)
def test_a_recipe_that_cannot_be_fitted_is_refused(recipe, sentences, message, tiny_backbone):
    with refusal(message):
        fit_recipe(recipe, sentences, backbone=tiny_backbone("bert"))


def test_the_command_makes_a_model(run, tmp_path):
    few = tmp_path / "few.txt"
    few.write_text("\n".join(MANY))
    words = ("fit", "--model", "first-last-tfidf", "--name", "tfidf", "--offline")
    ran = run(*words, "--on", "demo")
    assert (ran.code, ran.out) == (0, "") and "saved as model 'tfidf'" in ran.err
    fitted_on = run("models", "show", "tfidf", "--json").json["provenance"]["fitted_on"]
    assert fitted_on == {
        "source": "demo",
        "sentences": len(demo.SENTENCES_FILE.read_text().splitlines()),
    }
    assert float(
        run("similarity", "a dog", "a dog", "--model", "tfidf", "--offline").out
    ) == pytest.approx(1, abs=1e-3)
    refused(run(*words, "--on", few, "-q"), 2, "force")
    for on, message in (
        ("nowhere.txt", "no file 'nowhere.txt', and unknown task"),
        ("STS12", "task STS12 is missing"),
    ):
        refused(run(*words, "--data-dir", tmp_path, "--force", "--on", on, "-q"), 3, message)
    assert run(*words, "--force", "--on", few).code == 0


def test_a_fitted_model_is_read_as_it_was_fitted(home):
    recipe = Recipe(pooling="static/unbiased", transforms=("whitening:32:0.25",))
    sentences = demo.SENTENCES_FILE.read_text(encoding="utf-8").splitlines()[:300]
    fitted = pc.fit(recipe, sentences, name="w")
    assert gap(pc.load("w").encode(SENTENCES), fitted.encode(SENTENCES)) < 1e-4
    assert fitted.width == 32


def test_the_command_takes_the_model_as_an_argument_or_an_option(run, tmp_path, home, bert_folder):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(SENTENCES))
    words = ["--on", text, "--backbone", bert_folder, "--offline", "--json"]
    named = run("fit", "first-last-tfidf", *words, "--name", "one").json
    by_option = run("fit", "-m", "first-last-tfidf", *words, "--name", "two").json
    assert named["recipe"] == by_option["recipe"]
    assert named["recipe"]["pooling"] == "first-last/tfidf"
    both = run("fit", "first-last-tfidf", "-m", "whitening", *words, "--name", "three")
    refused(both, 2, "'first-last-tfidf' and --model whitening name two encoders; leave one out")


def test_what_cannot_be_fitted_is_said_before_a_name_that_is_taken(registry):
    registry.save(Entry("mine", RECIPES["cls"]))
    with refusal("no-such-file", NotFoundError):
        pc.fit("whitening", on="no-such-file.txt", name="mine")
    with refusal("'mine'"):
        pc.fit("whitening", on=["a", "b"], name="mine")
