"""The grammar of recipes: a printed recipe is read as the same, and stored ones stay valid."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcli import grammar
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.prompts import build_prompt
from promptcli.errors import UsageError
from promptcli.grammar import (
    Pair,
    parse_ditto,
    parse_pooling,
    parse_prompt,
    parse_transform,
)
from promptcli.recipe import RECIPES, Recipe
from tests.comparing import refusal

_whole = st.integers(0, 10**17).map(str)
_count = st.integers(1, 10**17).map(str)
_decimal = st.decimals(0, 10**9, places=8).map(float).map(grammar.decimal_text)
_pair = st.builds("{}-{}".format, _whole, _whole)
_text = st.from_regex(r"[A-Za-z .]{0,9}\[X\][A-Za-z .:]{0,9}", fullmatch=True)


def _formed(form, *values):
    return st.builds(form.format, *values)


_inner = st.one_of(
    _text,
    _formed("token-prepending:{}", _text),
    _formed("token-prepending:{}:{}", _pair, _text),
    _formed("token-prepending:{};{}:{}", st.just("") | _pair, _count | st.just("sentences"), _text),
    _formed("kv:{}", _text),
    _formed("kv:{};{}:{}", _pair, _decimal, _text),
)
_prompts = st.one_of(
    _inner,
    _formed("deep-prefix:{}", _whole),
    _formed("soft-template:{}", _text),
    _formed("soft-template-lookup:{}", _text),
    _formed("reversed:{}", _inner),
    _formed("contrastive:{} || {}", _inner, _inner),
    _formed(
        "contrastive:{}:{}{}:{} || {}",
        _whole,
        _decimal,
        st.sampled_from(["", ":norm"]),
        _inner,
        _inner,
    ),
    st.lists(_inner, min_size=1, max_size=3).map(lambda prompts: "mean:" + " || ".join(prompts)),
)
_plain_weights = st.one_of(
    st.sampled_from(["avg", "cls", "tfidf", "unbiased:sub", "mask", "ditto", "slot-attention"]),
    _formed("mask:{}", _count),
    _formed("ditto:{}", _pair),
    _formed("slot-attention:{}", _pair),
    _formed("slot-attention;{}", _decimal),
    _formed("slot-attention:{};{}", _pair, _decimal),
)
_states = st.one_of(
    st.sampled_from(["static", "last", "mlm-head", "first-last", "first-last:0", "first-last:1"]),
    _formed("layer-{}", st.integers(-99, 99)),
    st.sampled_from(["attention", "values"]),
    _formed("attention:{}", _pair),
    _formed("values:{}", _pair),
)
_poolings = _formed(
    "{}/{}",
    _states,
    st.lists(
        _plain_weights | _formed("from:{};{}", _whole, _plain_weights), min_size=1, max_size=3
    ).map("+".join),
)
_transforms = st.one_of(
    st.sampled_from(["flow", "normalize", "projection:mlm", "truncate", "spectral", "whitening"]),
    _formed("truncate:{}", _count),
    _formed("spectral:{}", _pair),
    _formed("whitening:{}", _count),
    _formed("whitening:all:{}", st.decimals(0, 1, places=6).map(float).map(grammar.decimal_text)),
    st.just("dense:0:tanh"),
)


@given(_prompts, _poolings, _transforms)
def test_what_is_read_is_printed_as_the_same(prompt, pooling, transform):
    assert str(parse_prompt(prompt)) == prompt
    assert str(parse_pooling(pooling)) == pooling
    assert str(parse_transform(transform)) == transform


@given(st.text(max_size=30))
def test_a_text_is_read_or_refused_and_printed_texts_stay(text):
    for parse in (parse_prompt, parse_pooling, parse_transform):
        try:
            printed = str(parse(text))
        except UsageError:
            continue
        assert str(parse(printed)) == printed


@pytest.mark.parametrize("name", RECIPES)
def test_the_named_recipes_are_printed_as_they_are_written(name):
    recipe = RECIPES[name]
    parts = recipe.parts
    written = (recipe.prompt, recipe.pooling, recipe.transforms, recipe.denoise)
    transforms = tuple(map(str, parts.transforms))
    assert (str(parts.prompt), str(parts.pooling), transforms, str(parts.denoise)) == written


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("kv:1-2;0.50:[X]", "kv:1-2;0.5:[X]"),
        ("kv:1-2;1.0:[X]", "kv:1-2;1:[X]"),
        ("kv:1-2;0.00000001:[X]", "kv:1-2;0.00000001:[X]"),
        ("contrastive:01:0.50:norm:a [X] || b [X]", "contrastive:1:0.5:norm:a [X] || b [X]"),
        ("contrastive:1:1.0:kv:1-2;2.0:[X] || b [X]", "contrastive:1:1:kv:1-2;2:[X] || b [X]"),
    ],
)
def test_a_built_part_spells_numbers_in_their_shortest_form_without_an_exponent(
    text, spelled, tiny_backbone
):
    backbone = tiny_backbone("llama")
    assert build_prompt(parse_prompt(text), backbone, {}).spec == spelled
    built = [
        TorchEncoder(Recipe(prompt=each, pooling="last/last-token"), backbone, {})
        for each in (text, spelled)
    ]
    assert built[0].fingerprint == built[1].fingerprint


def test_a_recipe_keeps_the_text_and_gives_its_parts():
    recipe = Recipe(prompt="kv:2-9;0.50:prompteol", pooling="ditto:1-10")
    assert recipe.prompt == "kv:2-9;0.50:prompteol" and recipe.pooling == "first-last/ditto:1-10"
    assert recipe.parts.prompt.values == {"layers": (2, 9), "bias": 0.5, "text": "prompteol"}
    assert recipe.parts.pooling.head == Pair(1, 10)
    assert recipe.parts is recipe.parts and "parts" not in recipe.to_dict()


@pytest.mark.parametrize(
    ("text", "head"),
    [
        ("ditto:1-10", "1-10"),
        ("first-last/ditto:3-7", "3-7"),
        ("last/ditto", None),
        ("last/slot-attention:1-2", None),
        ("last/from:1;ditto:1-2", None),
        ("./folder/ditto:1-2", None),
        ("ditto:x", None),
        ("mini", None),
    ],
)
def test_a_head_of_ditto_is_told_from_other_names(text, head):
    pooling = parse_ditto(text)
    assert (None if pooling is None else str(pooling.head)) == head


@pytest.mark.parametrize(
    ("parse", "text", "word"),
    [
        (parse_prompt, "deep-prefix:x", "prefix length"),
        (parse_prompt, "contrastive:prompteol", "AUXILIARY"),
        (parse_prompt, "reversed:mean:a", "mean"),
        (parse_prompt, "reversed:a || b", "reversed:PROMPT"),
        (parse_prompt, "token-prepending:1-7;words:[X]", "sentences"),
        (parse_prompt, "kv:2-9;x:[X]", "BIAS"),
        (parse_pooling, "last", "STATES/WEIGHTS"),
        (parse_pooling, "layer-x/avg", "layer-K"),
        (parse_pooling, "attention:3/avg", "A-B"),
        (parse_pooling, "first-last:2/avg", "first-last:1"),
        (parse_pooling, "last/ditto:x", "LAYER-HEAD"),
        (parse_pooling, "last/mask:0", "mask:K"),
        (parse_pooling, "last/slot-attention;x", "ALPHA"),
        (parse_transform, "truncate:0", "truncate:200"),
        (parse_transform, "whitening:all:2", "exponent"),
        (parse_transform, "spectral:3", "spectral:16-64"),
    ],
)
def test_what_is_no_part_is_refused_with_what_is(parse, text, word):
    with refusal(re.escape(word)):
        parse(text)
