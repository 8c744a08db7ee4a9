"""Recipe: plain data in and out, one source of options, and named rows."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import promptcli as pc
from promptcli.encoder.template import check_template
from promptcli.grammar import DENOISINGS
from promptcli.named_templates import named_templates, template_text
from promptcli.recipe import COMPARED, LISTED, RECIPES, Recipe
from tests.comparing import refusal

_text = st.text(max_size=20)


@given(
    st.builds(
        Recipe,
        backbone=_text,
        prompt=_text,
        period=st.none() | st.booleans(),
        pooling=_text,
        transforms=st.lists(_text, max_size=3).map(tuple),
        denoise=st.sampled_from(DENOISINGS),
        max_length=st.none() | st.integers(1, 512),
    )
)
def test_json_brings_back_an_equal_recipe(recipe):
    assert Recipe.from_text(recipe.to_json()) == recipe


def test_toml_and_json_say_the_same():
    toml = """
        backbone = "roberta-base"
        prompt = 'This sentence : "[X]" means [MASK] .'
        transforms = ["topk-tokens:200"]
    """
    recipe = Recipe.from_text(toml)
    assert recipe == Recipe.from_text(recipe.to_json())
    assert recipe.transforms == ("topk-tokens:200",) and recipe.resolve().period is True


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"poling": "last/avg"}', "'poling'.*pooling"),
        ('{"max_length": "128"}', r"int \| null.*str.*max_length"),
        ('{"max_length": true}', r"int \| null.*bool.*max_length"),
        ('{"transforms": [1]}', r"str.*int.*transforms\[0\]"),
        ('{"transforms": "whitening"}', "array.*str.*transforms"),
        ("{", "JSON"),
        ("a = = b", "TOML"),
    ],
)
def test_what_is_not_a_recipe_is_refused_in_one_line(text, message):
    with refusal(message) as caught:
        Recipe.from_text(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "period"),
    [
        (Recipe(), False),
        (Recipe(prompt="deep-prefix:4"), False),
        (Recipe(prompt="manual"), True),
        (Recipe(prompt="[X] means [MASK] .", period=False), False),
        (Recipe().replace(prompt="[X] [MASK]"), True),
    ],
)
def test_the_period_rule_follows_the_prompt(recipe, period):
    assert recipe.resolve().period is period


MASKED = "[X] means [MASK] ."


@pytest.mark.parametrize(
    ("recipe", "pooling"),
    [
        (Recipe(), "first-last/avg"),
        (Recipe(prompt=MASKED), "last/mask"),
        (Recipe(prompt="manual"), "last/mask"),
        (Recipe(prompt="prompteol"), "first-last/avg"),
        (Recipe(prompt="deep-prefix:4"), "first-last/avg"),
        (Recipe(prompt="soft-template:manual"), "last/mask"),
        (Recipe(prompt=f"mean:{MASKED} || manual"), "last/mask"),
        (Recipe(prompt=f"mean:{MASKED} || [X]"), "first-last/avg"),
        (Recipe(prompt=MASKED, pooling="last/avg"), "last/avg"),
        (Recipe().replace(backbone="x").replace(prompt=MASKED), "last/mask"),
        (Recipe(prompt=MASKED).resolve().replace(prompt="[X]"), "first-last/avg"),
        (Recipe(pooling="first-last/avg").replace(prompt=MASKED), "first-last/avg"),
        (Recipe().replace(prompt=MASKED, pooling="last/cls"), "last/cls"),
        (RECIPES["first-last-avg"].replace(prompt=MASKED), "first-last/avg"),
        (RECIPES["whitening"].replace(prompt=MASKED), "last/mask"),
        (Recipe.from_text(f'{{"prompt": "{MASKED}"}}'), "last/mask"),
    ],
)
def test_a_mask_in_the_prompt_is_read_unless_a_pooling_is_given(recipe, pooling):
    assert recipe.pooling == pooling


def test_how_the_pooling_was_decided_is_not_part_of_a_recipe():
    assert Recipe(prompt=MASKED) == Recipe(prompt=MASKED, pooling="last/mask")
    assert "pooling_by_prompt" not in Recipe().to_dict()
    with refusal("unknown key 'pooling_by_prompt'"):
        Recipe.from_text('{"pooling_by_prompt": true}')


def test_one_transform_is_one_text():
    assert Recipe(transforms="flow") == Recipe(transforms=("flow",))
    assert pc.load("mini-bert", transforms="normalize").recipe.transforms == ("normalize",)


@pytest.mark.parametrize("choice", [Recipe(), '{"pooling": "last/cls"}', "prompt"])
def test_a_recipe_has_no_revision(choice):
    with pytest.raises(
        pc.UsageError, match="can be given only with the name of a model on the hub"
    ):
        pc.load(choice, revision="x")


def test_named_recipes_are_distinct_and_round_trip():
    assert len(set(map(Recipe.to_json, RECIPES.values()))) == len(RECIPES)
    assert all(
        Recipe.from_dict(json.loads(recipe.to_json())) == recipe for recipe in RECIPES.values()
    )


def test_named_templates_are_sound():
    for name, template in named_templates().items():
        check_template(template.text)
        assert template_text(name) == template.text and template.source


def test_a_mean_of_two_prompts_and_what_lists_show():
    first, second = (RECIPES[name].prompt for name in ("pretended-cot", "knowledge"))
    assert RECIPES["cot+knowledge"] == RECIPES["knowledge"].replace(
        prompt=f"mean:{first} || {second}"
    )
    assert {*LISTED} | {*COMPARED} == {*RECIPES}
    assert {*RECIPES} - {*COMPARED} == {"prompt-topk", "prompt-topk-denoised"}


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("prompt", 3, "prompt: 3 is not allowed; it must be of the type str"),
        ("max_length", 0, "max_length: 0 is not allowed; it must be at least 1"),
        ("denoise", "none:code", "unknown denoise 'none:code'"),
    ],
)
def test_a_recipe_is_checked_when_it_is_made(field, value, words):
    with refusal(words):
        Recipe(**{field: value})


def test_a_width_must_be_above_0():
    with refusal("dim: must be at least 1, got 0"):
        Recipe().truncate(0)
