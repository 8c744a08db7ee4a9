"""The commands ``models`` and ``recipes`` as a user types them."""

import pytest
import torch

from promptcli.cli.commands.models import method_line
from promptcli.models.entries import SHIPPED_MODELS, Entry
from promptcli.recipe import LISTED, RECIPES, Recipe
from tests.comparing import refused


@pytest.fixture
def registry(registry):
    scores = [{"task": "sts-b", "metric": "spearman", "value": 71.5, "ci95": [70.0, 73.0]}]
    about = {"width": 256, "on": "demo"}
    registry.save(Entry("white", RECIPES["whitening"], {"mean": torch.zeros(4)}, about, scores))
    return registry


def test_list_is_a_table_or_one_document(run, registry):
    ran = run("models", "list")
    heads, *rows = ran.out.splitlines()
    columns = ["name", "trained", "method", "score", "backbone", "width", "origin", "created"]
    assert heads.split() == columns
    assert [row.split()[0] for row in rows] == [*SHIPPED_MODELS, "white"]
    assert "shipped" in rows[0] and "saved" in rows[-1] and " 256 " in rows[-1]
    assert (ran.code, ran.err) == (0, "")
    assert "85.35 STS-B:dev" in rows[0] and "71.50 sts-b" in rows[-1]
    listed = {row["name"]: row for row in run("models", "list", "--json").json}
    assert listed["white"].pop("score")["value"] == 71.5
    assert (
        listed["white"].pop("created").endswith("+00:00") and listed["mini"]["origin"] == "shipped"
    )
    assert listed["white"] == {
        "name": "white",
        "trained": None,
        "origin": "saved",
        "method": "[X] | first-last/avg | whitening",
        "backbone": "mini-bert",
        "width": 256,
    }


def test_a_damaged_entry_is_said_and_the_others_are_listed(run, registry, home):
    recipe = home / "models" / "white" / "promptcli.json"
    recipe.write_text("{}")
    ran = run("models", "list", "--json")
    assert [row["name"] for row in ran.json] == list(SHIPPED_MODELS)
    assert "white" in ran.err and ran.code == 0
    assert recipe.name in refused(run("models", "show", "white"), 4)


def test_show_prints_an_entry_and_its_json(run, registry):
    shown = run("models", "show", "white").out
    for text in ("white", "whitening", "on", "demo", "71.5", "saved", "tensors"):
        assert text in shown
    document = run("models", "show", "white", "--json").json
    assert document["name"] == "white" and document["tensors"] is True
    assert Recipe.from_dict(document["recipe"]) == RECIPES["whitening"]
    assert (
        document["provenance"] == {"width": 256, "on": "demo"}
        and document["scores"][0]["value"] == 71.5
    )
    assert run("models", "show", "mini", "--json").json["origin"] == "shipped"


def test_show_fits_a_screen_and_all_shows_the_rest(run):
    shown = run("models", "show", "mini")
    assert len(shown.out.splitlines()) <= 24 and "--all" in shown.err
    for text in ("mini-bert", "distill", "last/mask", "STS-B"):
        assert text in shown.out
    assert "learning_rate" not in shown.out
    rest = run("models", "show", "mini", "--all").out
    assert "sha256" in rest and "learning_rate" in rest


def test_remove_deletes_an_entry_that_is_there(run, registry):
    ran = run("models", "remove", "white")
    assert (ran.code, ran.out) == (0, "") and "white" in ran.err
    assert registry.names() == list(SHIPPED_MODELS)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("show", "whit"), 3, "white"),
        (("remove", "mini"), 2, "shipped"),
        (("remove", "nobody"), 3, "nobody"),
    ],
)
def test_mistakes_are_one_line_with_their_code(run, registry, arguments, code, said):
    assert said in refused(run("models", *arguments), code)
    assert registry.names() == [*SHIPPED_MODELS, "white"]


def test_recipes_are_listed_with_what_they_are(run, home):
    heads, *rows = run("models", "list", "--recipes").out.splitlines()
    assert heads.split()[0] == "name" and [row.split()[0] for row in rows] == list(LISTED)
    assert {"prompteol", "cot+knowledge"} < {*LISTED} < {*RECIPES}
    assert method_line(RECIPES["prompt-topk-denoised"]).endswith(
        "| last/mask | topk-tokens:200 | denoise hidden"
    )
    assert not home.exists()
    documents = run("models", "list", "--recipes", "--json").json
    assert {row.pop("name"): Recipe.from_dict(row) for row in documents} == RECIPES
