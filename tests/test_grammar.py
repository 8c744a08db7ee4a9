"""The grammar of recipes: what is printed is read as the same, and what is stored stays."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptcli import grammar
from promptcli.errors import UsageError
from promptcli.grammar import (
    AttentionHead,
    Blocks,
    ContrastiveSpec,
    DeepPrefixSpec,
    DittoSpec,
    KVSpec,
    LayerRange,
    MeanSpec,
    Rerouted,
    ReversedSpec,
    SoftTemplateLookupSpec,
    SoftTemplateSpec,
    Subtraction,
    TemplateSpec,
    TokenPrependingSpec,
    parse_denoise,
    parse_ditto,
    parse_pooling,
    parse_prompt,
    parse_transform,
)
from promptcli.recipe import RECIPES, Recipe

_whole = st.integers(0, 10**17)
_decimal = st.decimals(0, 10**9, places=8).map(float)
_layers = st.builds(LayerRange, _whole, _whole)
_blocks = st.builds(Blocks, st.none() | st.integers(1, 10**17))
_head = st.builds(AttentionHead, _whole, _whole)
_text = st.from_regex(r"[A-Za-z .]{0,9}\[X\][A-Za-z .:]{0,9}", fullmatch=True)
_template = st.builds(TemplateSpec, _text)
_inner = st.one_of(
    _template,
    st.builds(TokenPrependingSpec, st.none() | _layers, st.none() | _blocks, _text),
    st.builds(KVSpec, st.none() | st.builds(Rerouted, _layers, _decimal), _text),
)
_prompts = st.one_of(
    _inner,
    st.builds(DeepPrefixSpec, _whole),
    st.builds(SoftTemplateSpec, _text),
    st.builds(SoftTemplateLookupSpec, _text),
    st.builds(ReversedSpec, _inner),
    st.builds(
        ContrastiveSpec,
        st.none() | st.builds(Subtraction, _whole, _decimal, st.booleans()),
        _inner,
        _inner,
    ),
    st.lists(_inner, min_size=1, max_size=3).map(tuple).map(MeanSpec),
)
_plain_weights = st.one_of(
    st.sampled_from(["avg", "cls", "tfidf"]).map(grammar.PlainWeightsSpec),
    st.builds(grammar.PlainWeightsSpec, st.just("unbiased"), st.just("sub")),
    st.builds(grammar.MaskSpec, st.integers(1, 99)),
    st.builds(DittoSpec, st.none() | _head),
    st.builds(grammar.SlotAttentionSpec, st.none() | _head, st.none() | _decimal),
)
_states = st.one_of(
    st.sampled_from(["static", "last", "mlm-head"]).map(grammar.PlainStatesSpec),
    st.builds(grammar.FirstLastSpec, st.sampled_from([None, 0, 1])),
    st.builds(grammar.LayerSpec, st.integers(-99, 99)),
    st.builds(grammar.AttentionSpec, st.none() | _layers),
    st.builds(grammar.ValuesSpec, st.none() | _layers),
)
_poolings = st.builds(
    grammar.PoolingSpec,
    _states,
    st.lists(
        _plain_weights | st.builds(grammar.FromSpec, _whole, _plain_weights), min_size=1, max_size=3
    ).map(tuple),
)
_exponent = st.decimals(0, 1, places=6).map(float)
_transforms = st.one_of(
    st.sampled_from(["flow", "normalize"]).map(grammar.PlainTransformSpec),
    st.builds(grammar.PlainTransformSpec, st.just("projection"), st.just("mlm")),
    st.builds(grammar.CountSpec, st.just("truncate"), st.none() | st.integers(1, 99)),
    st.builds(grammar.EndsSpec, st.just("spectral"), st.none() | st.tuples(_whole, _whole)),
    st.builds(grammar.WhiteningSpec, st.none() | st.integers(1, 999), st.none() | _exponent),
    st.builds(grammar.DenseSpec, st.just("0"), st.just("tanh")),
)


@given(_prompts, _poolings, _transforms)
def test_what_is_printed_is_read_as_the_same(prompt, pooling, transform):
    assert parse_prompt(str(prompt)) == prompt
    assert parse_pooling(str(pooling)) == pooling
    assert parse_transform(str(transform)) == transform


@given(st.text(max_size=30))
def test_a_text_is_read_or_refused_and_printed_texts_stay(text):
    for parse in (parse_prompt, parse_pooling, parse_transform, parse_denoise):
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
    ("text", "printed"),
    [
        ("kv:2-9;0.50:prompteol", "kv:2-9;0.5:prompteol"),
        ("kv:2-9;1.0:prompteol", "kv:2-9;1:prompteol"),
        ("kv:2-9;0.00000001:prompteol", "kv:2-9;0.00000001:prompteol"),
        ("contrastive:04:0.5:norm:a || b", "contrastive:4:0.5:norm:a || b"),
        ("instruct:Find [X]", "instruct:Find [X]"),
    ],
)
def test_numbers_are_printed_in_their_shortest_form_without_an_exponent(text, printed):
    assert str(parse_prompt(text)) == printed


def test_a_recipe_keeps_the_text_and_gives_its_parts():
    recipe = Recipe(prompt="kv:2-9;0.50:prompteol", pooling="ditto:1-10")
    assert recipe.prompt == "kv:2-9;0.50:prompteol" and recipe.pooling == "first-last/ditto:1-10"
    assert recipe.parts.prompt == KVSpec(Rerouted(LayerRange(2, 9), 0.5), "prompteol")
    assert recipe.parts.pooling.head == AttentionHead(1, 10)
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
        (parse_prompt, "reversed:mean:a || b", "mean"),
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
        (parse_denoise, "hidden:x", "hidden:code"),
    ],
)
def test_what_is_no_part_is_refused_with_what_is(parse, text, word):
    with pytest.raises(UsageError, match=re.escape(word)):
        parse(text)
