"""``search-layers``: one pass for all layers equals the recipes one by one; what it prints, saves and refuses."""

import pytest

from promptcli.backbones.backbone import Backbone
from promptcli.encoder.encoder import build_encoder
from promptcli.errors import UsageError
from promptcli.evaluation.evaluator import evaluate
from promptcli.recipe import RECIPES, Recipe
from promptcli.searching.searches import search_layers
from tests.searching.pairs import TASK, make_task, write_pairs

CASES = [
    ("bert", RECIPES["prompt"], ()),
    ("bert", Recipe(), ("avg", "cls")),
    ("qwen2", RECIPES["prompteol"], ("last-token", "avg")),
]


@pytest.mark.parametrize(("family", "recipe", "weights"), CASES)
def test_every_layer_equals_its_recipe_and_costs_one_pass(family, recipe, weights, tiny_backbone, monkeypatch):
    backbone = tiny_backbone(family)
    passes = []
    original = Backbone.run
    monkeypatch.setattr(Backbone, "run", lambda self, *given: passes.append(given) or original(self, *given))
    found = search_layers(build_encoder(recipe, backbone=backbone), TASK, weights=weights)
    once = len(passes)
    passes.clear()
    evaluate([build_encoder(recipe, backbone=backbone)], [TASK])
    assert once == len(passes)
    kinds = weights or (recipe.pooling.partition("/")[2],)
    layers = [f"layer-{layer}" for layer in range(backbone.n_layers)]
    wanted = {f"{states}/{kind}" for kind in kinds for states in (*layers, "last", "first-last", "first-last:1")}
    assert {row.choice for row in found.ranked} == wanted | {recipe.pooling}
    own = evaluate([build_encoder(recipe, backbone=backbone)], [TASK])[0].value
    assert found.baseline["own"].value == pytest.approx(own, abs=1e-4)
    assert [row.value for row in found.ranked] == sorted((row.value for row in found.ranked), reverse=True)
    for row in found.ranked:
        score = evaluate([build_encoder(recipe.replace(pooling=row.choice), backbone=backbone)], [TASK])[0]
        assert row.value == pytest.approx(score.value, abs=1e-3), row.choice
        assert row.ci95 == pytest.approx(score.ci95, abs=1e-2)
        assert row.gain == pytest.approx(score.value - own, abs=1e-3)
    assert found.encoder.recipe.pooling == found.best.choice


def test_the_best_is_saved(run, tiny_folder, tmp_path):
    arguments = ["search-layers", "--on", write_pairs(tmp_path), "--backbone", tiny_folder("llama")]
    arguments += ["--model", "prompteol", "--name", "layers"]
    found = run(*arguments, "--json").json
    assert found["recipe"]["pooling"] == found["ranked"][0]["choice"] and found["model"] == "layers"
    table = run(*arguments, "--force")
    assert table.code == 0 and "luck:" in table.out and "first-last:1/last-token" in table.out


@pytest.mark.parametrize(
    ("recipe", "task", "weights", "message"),
    [
        (RECIPES["prompt-topk"].replace(transforms=("topk-tokens:20",)), TASK, (), "compared without transforms"),
        (Recipe(), TASK, ["largest"], "weights of pooling"),
        (Recipe(), make_task([("a", "c"), ("b", "d")]), (), "at least 4"),
    ],
)
def test_refusals(recipe, task, weights, message, tiny_backbone):
    with pytest.raises(UsageError, match=message):
        search_layers(build_encoder(recipe, backbone=tiny_backbone("bert")), task, weights=weights)
