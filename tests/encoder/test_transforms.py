"""Linear transforms fitted on sentences: formulas against plain loops, what is refused, numbers
chosen by pairs.
"""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import promptcli as pc
from promptcli.data.tasks import Pairs, STSTask
from promptcli.encoder.components import BuildContext
from promptcli.encoder.encoder import build_encoder
from promptcli.encoder.transforms import TRANSFORMS, build_transforms
from promptcli.encoder.transforms.principal_axes import (
    AllButTheTop,
    Spectral,
    Whitening,
)
from promptcli.evaluation import statistics
from promptcli.grammar import parse_transform
from promptcli.models.entries import Entry, Registry
from promptcli.models.loading import open_torch_encoder
from promptcli.notes import showing_stages
from promptcli.recipe import Recipe
from promptcli.training.fitting import CANDIDATES, fit_recipe
from tests.comparing import gap, refusal
from tests.reference import plain
from tests.tiny import SENTENCES

D = 16
MANY = SENTENCES + [f"{one} {other}" for one in SENTENCES for other in SENTENCES[:3]]
FIT = {"all-but-the-top": AllButTheTop.fit, "whitening": Whitening.fit, "spectral": Spectral.fit}


def vectors_of(seed=0, n=60, d=D):
    generator = np.random.default_rng(seed)
    # variances that differ, so axes are distinct
    mixing = generator.normal(size=(d, d)) * np.geomspace(4, 0.3, d)
    return (generator.normal(size=(n, d)) @ mixing + generator.normal(size=d)).astype(np.float32)


def transformed(spec, vectors, backbone, fitted_on=None):
    name = spec.partition(":")[0]
    tensors = FIT[name](vectors if fitted_on is None else fitted_on)
    made = torch.from_numpy(vectors)
    (transform,) = build_transforms([parse_transform(spec)], backbone, tensors)
    for _, step in transform.stages:
        made = step(made)
    return made.numpy()


def up_to_signs(found, expected):
    return gap(found, np.sign((found * expected).sum(0)) * expected)


@pytest.mark.parametrize("k", [1, 3, D - 1])
def test_all_but_the_top_is_the_plain_formula(k, tiny_backbone):
    vectors = vectors_of()
    expected = plain.all_but_the_top(torch.from_numpy(vectors).double(), k).numpy()
    found = transformed(f"all-but-the-top:{k}", vectors, tiny_backbone("bert"))
    assert gap(found, expected) < 1e-4 and np.linalg.matrix_rank(expected, tol=1e-3) == D - k


@pytest.mark.parametrize(("top", "bottom"), [(0, 0), (3, 0), (0, 5), (2, 7), (D - 1, 0)])
def test_spectral_keeps_the_axes_between_both_ends(top, bottom, tiny_backbone):
    vectors = torch.from_numpy(vectors_of()).double()
    mean, matrix = plain.covariance(vectors)
    expected = plain.kept_axes(vectors, matrix, top, bottom, mean).numpy()
    found = transformed(f"spectral:{top}-{bottom}", vectors_of(), tiny_backbone("bert"))
    assert found.shape == (60, D - top - bottom) and up_to_signs(found, expected) < 1e-4


@pytest.mark.parametrize("exponent", ["0", "0.125", "0.25", "0.5", "1"])
def test_whitening_with_an_exponent_is_the_plain_formula(exponent, tiny_backbone):
    expected = plain.part_whitened(torch.from_numpy(vectors_of()).double(), float(exponent)).numpy()
    found = transformed(f"whitening:all:{exponent}", vectors_of(), tiny_backbone("bert"))
    assert up_to_signs(found, expected) < 1e-4 * np.abs(expected).max()
    narrow = transformed(f"whitening:4:{exponent}", vectors_of(), tiny_backbone("bert"))
    assert gap(narrow, found[:, :4]) < 1e-5


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_embed_filter_takes_the_axes_of_the_output_embeddings(family, tiny_backbone):
    """Untied embeddings would differ from the input's: the rows are the head's."""
    backbone = tiny_backbone(family)
    rows = backbone.head.output_embeddings.detach().double()
    vectors = torch.from_numpy(vectors_of()).double()
    zero = torch.zeros(D, dtype=torch.float64)
    expected = plain.kept_axes(
        vectors, sum(torch.outer(row, row) for row in rows), 2, 6, zero
    ).numpy()
    encoder = build_encoder(Recipe(transforms=("embed-filter:2-6",)), backbone=backbone)
    ((_, step),) = encoder.transforms[0].stages
    assert up_to_signs(step(vectors.float()).numpy(), expected) < 1e-4
    assert encoder.width == D - 8 and encoder.tensors() == {}


@pytest.mark.parametrize("name", FIT)
def test_too_few_or_equal_sentences_are_refused(name):
    with refusal(f"{name} of 16 dimensions needs more than 16 sentences to span them; 16 were"):
        FIT[name](vectors_of(n=16))
    with refusal("those of the 60 sentences are all the same"):
        FIT[name](np.full((60, D), 0.1, np.float32))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("all-but-the-top:16", "'all-but-the-top:16' is not allowed; the fitted model has 1 to 15"),
        ("all-but-the-top:0", "give a whole number"),
        ("spectral:8-8", "fewer than 16 together, e.g. spectral:1-4"),
        ("spectral:3", "how many axes to drop"),
        ("embed-filter:16-0", "fewer than 16 together"),
        ("whitening:17", "the fitted matrix has 16 columns"),
        ("whitening:0", "give a whole number above 0, e.g. whitening:200"),
        ("whitening:4:2", "an exponent from 0 to 1"),
    ],
)
def test_numbers_that_are_not_allowed_are_refused(spec, message, tiny_backbone):
    tensors = {name: tensor for made in FIT.values() for name, tensor in made(vectors_of()).items()}
    with refusal(message):
        build_transforms([parse_transform(spec)], tiny_backbone("bert"), tensors)


@pytest.mark.parametrize(
    "spec", ["all-but-the-top:3", "spectral:2-5", "whitening:6:0.25", "whitening:all:0.25"]
)
def test_a_saved_one_gives_the_same_vectors(spec, bert_folder, home):
    """Also with what stays of the fitted tensors: those that the spec uses."""
    recipe = Recipe(backbone=str(bert_folder), transforms=(spec,))
    encoder = fit_recipe(recipe, MANY, dtype="float32").encoder
    Registry(home).save(Entry("mine", encoder.recipe, encoder.tensors()))
    again = open_torch_encoder(Registry(home).load("mine"), dtype="float32")
    assert np.array_equal(again.encode(MANY), encoder.encode(MANY))
    assert again.recipe.transforms == (spec,) and again.fingerprint == encoder.fingerprint
    other = spec.replace("3", "5").replace("2-5", "1-5").replace("6:", "7:")
    if other != spec:
        with refusal("fitted"):
            build_encoder(recipe.replace(transforms=(other,)), tensors=encoder.tensors())


def graded(backbone, transform):
    """Pairs whose gold scores are the cosines of a recipe, so that it is the best there is."""
    encoder = fit_recipe(Recipe(transforms=(transform,)), MANY, backbone=backbone).encoder
    first, second = MANY[:24], MANY[24:]
    gold = statistics.cosine(encoder.encode(first), encoder.encode(second))
    return STSTask("mine", "dev", "senteval", "own", {"all": Pairs(first, second, gold)})


@pytest.mark.parametrize("best", ["all-but-the-top:2", "whitening:all:0.25", "spectral:2-4"])
def test_the_best_candidate_is_chosen(best, tiny_backbone):
    backbone, name = tiny_backbone("bert"), best.partition(":")[0]
    done = []
    task = graded(backbone, best)
    with showing_stages(lambda name, steps: nullcontext(done.append)):
        made = fit_recipe(Recipe(transforms=(name,)), MANY, choose_by=task, backbone=backbone)
    selected = made.provenance["selected_on"]
    values = [row["value"] for row in selected["candidates"]]
    assert selected["chosen"] == best and max(values) == pytest.approx(100)
    assert made.encoder.recipe.transforms == (best,)
    assert sum(done) == len(MANY) + len(set(MANY))
    assert [row["transform"] for row in selected["candidates"]] == CANDIDATES[name](D)
    sides = (
        build_encoder(Recipe(), backbone=backbone).encode(side) for side in (MANY[:24], MANY[24:])
    )
    without = 100 * statistics.spearman(statistics.cosine(*sides), task.pairs().gold)
    assert selected["without"]["value"] == pytest.approx(without, abs=1e-4)
    assert len(selected["data_sha256"]) == 64


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            Recipe(transforms=("whitening:4",)),
            "'whitening:4' already has parameters; give whitening",
        ),
        (
            Recipe(transforms=("whitening", "flow")),
            "the last transform is 'flow'; select chooses parameters for: ",
        ),
        (Recipe(), "the last transform is 'none'"),
    ],
)
def test_a_transform_without_parameters_to_choose_is_refused(recipe, message, tiny_backbone):
    with refusal(message):
        fit_recipe(
            recipe,
            MANY,
            choose_by=graded(tiny_backbone("bert"), "whitening"),
            backbone=tiny_backbone("bert"),
        )


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("d", [8, 16, 100, 256, 768])
def test_every_candidate_can_be_made(name, d, tiny_backbone):
    if name == "embed-filter":
        d = D
    tensors = {} if name == "embed-filter" else FIT[name](vectors_of(n=d + 20, d=d))
    for spec in CANDIDATES[name](d)[:: max(1, d // 16)]:
        TRANSFORMS[name](BuildContext(parse_transform(spec), tiny_backbone("bert"), tensors))


def test_nothing_is_chosen_by_a_test_set():
    with refusal("demo is a test set"):
        pc.fit(Recipe(transforms=("whitening",)), select="demo")
