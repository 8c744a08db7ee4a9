"""States ``values``: the plain loop, the identities that follow from the formula, and what runs."""

import numpy as np
import pytest
import torch
from torch import nn

from promptcli.backbones.by_name import load_backbone
from promptcli.encoder.encoder import build_encoder, encode_together
from promptcli.encoder.pooling.tfidf import TENSOR, fit_idf
from promptcli.recipe import RECIPES, Recipe
from tests.comparing import gap, refusal
from tests.reference import plain
from tests.reference.values import value_maps, value_states
from tests.tiny import SENTENCES as ALL
from tests.tiny import save_tiny
from tests.tiny_causal import CAUSAL, save_tiny_causal

SENTENCES = ALL[:3] + ALL[-3:]
MASKED = ("bert", "roberta", "electra", "mpnet", "modernbert", "distilbert")
FAMILIES = (*MASKED, *CAUSAL)
POST_NORM = ("bert", "roberta", "electra", "mpnet", "distilbert")
TOLERANCE = 1e-5


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def backbone(family, tiny_backbone):
    return tiny_backbone(family)


@pytest.fixture
def reference(family, plain_backbone):
    return plain_backbone(family)


def made(backbone, pooling, tensors=None, **changes):
    return build_encoder(Recipe(pooling=pooling, **changes), backbone=backbone, tensors=tensors)


def assert_near(vectors, expected):
    golden = np.stack([row.numpy() for row in expected])
    largest = np.abs(golden).max()
    assert vectors.shape == golden.shape and largest > 1e-2
    assert gap(vectors, golden) < TOLERANCE * max(1, largest)


WEIGHTS = {
    "avg": lambda states, matrices: plain.average(states),
    "max": lambda states, matrices: plain.maximum(states),
    "last-token": lambda states, matrices: states[-1],
    "ditto:1-3": lambda states, matrices: plain.ditto(states, matrices[0], 2),
    "ditto:2-2": lambda states, matrices: plain.ditto(states, matrices[1], 1),
}


@pytest.mark.parametrize("layers", [(2, 2), (1, 2)])
def test_values_equal_the_plain_loop_under_every_weight(layers, backbone, reference):
    first, last = layers
    encoders = [made(backbone, f"values:{first}-{last}/{name}") for name in WEIGHTS]
    vectors = [encoder.encode(SENTENCES) for encoder in encoders]
    expected = [[] for _ in WEIGHTS]
    for sentence in SENTENCES:
        ids = reference.ids("[X]", sentence)
        states = value_states(reference, ids)[0][first - 1 : last].sum(0)
        _, matrices = reference.states(ids)
        for rows, formula in zip(expected, WEIGHTS.values(), strict=True):
            rows.append(formula(states, matrices))
    for own, rows in zip(vectors, expected, strict=True):
        assert_near(own, rows)
    together = encode_together([*encoders, made(backbone, "last/avg")], SENTENCES)
    for own, joint in zip(vectors, together, strict=False):
        assert gap(own, joint.vectors) < TOLERANCE * max(1, np.abs(own).max())


def test_values_at_the_mask_and_by_token_statistics(tiny_backbone, plain_backbone):
    backbone, reference = tiny_backbone("bert"), plain_backbone("bert")
    template = plain.TEMPLATES["bert"]
    at_mask = made(backbone, "values/mask", prompt=template, period=False)
    places = [reference.ids(template, sentence) for sentence in SENTENCES]
    expected = [
        value_states(reference, ids)[0][1][ids.index(reference.tokenizer.mask_token_id)]
        for ids in places
    ]
    assert_near(at_mask.encode(SENTENCES), expected)
    documents = [reference.ids("[X]", sentence) for sentence in SENTENCES]
    idf = {TENSOR: fit_idf(documents, len(reference.rows()))}
    expected = [
        plain.tfidf(ids, value_states(reference, ids)[0][1], documents) for ids in documents
    ]
    assert_near(made(backbone, "values/tfidf", idf).encode(SENTENCES), expected)


def test_the_mean_of_values_is_the_map_of_the_mean_of_what_the_attention_reads(
    family, backbone, reference
):
    """Post-norm families read the layer before; pre-norm ones its normed states, not the raw."""
    encoder = made(backbone, "values:2-2/avg")
    name, mapping = value_maps(reference)[1]
    for sentence, vector in zip(SENTENCES, encoder.encode(SENTENCES), strict=True):
        ids = reference.ids("[X]", sentence)
        before = reference.states(ids)[0][1].mean(0)
        read = value_states(reference, ids)[1][1].mean(0)
        assert torch.allclose(before, read, atol=1e-5) == (family in POST_NORM)
        with torch.no_grad():
            mapped = mapping(read[None])[0]
            raw = mapping(before[None])[0]
        if name in ("c_attn", "Wqkv"):
            mapped, raw = mapped.chunk(3)[-1], raw.chunk(3)[-1]
        scale = max(1, float(mapped.abs().max()))
        assert gap(vector, mapped.numpy()) < TOLERANCE * scale
        assert np.allclose(vector, raw.numpy(), atol=1e-3) == (family in POST_NORM)


@pytest.mark.parametrize("family", ["bert", "distilbert", "opt", "llama", "qwen2"], indirect=True)
def test_even_attention_is_the_projection_of_the_mean_of_values(family, tmp_path):
    causal = family in CAUSAL
    save = save_tiny_causal if causal else save_tiny
    backbone = load_backbone(str(save(family, tmp_path)))
    silenced = [module for name, module in backbone.model.named_modules()
                if name.rpartition(".")[2] in ("query", "q_lin", "q_proj")]  # fmt: skip
    assert len(silenced) == backbone.n_layers
    with torch.no_grad():
        for queries in silenced:
            for parameter in queries.parameters():
                parameter.zero_()
    weights = "last-token" if causal else "max"  # all tokens have one output
    outputs = made(backbone, f"attention:2-2/{weights}").encode(SENTENCES)
    values = torch.from_numpy(made(backbone, "values:2-2/avg").encode(SENTENCES))
    heads = values.view(len(SENTENCES), backbone.n_key_heads, -1)
    repeated = heads.repeat_interleave(backbone.n_heads // backbone.n_key_heads, dim=1)
    with torch.no_grad():
        projected = backbone.projection(1)(repeated.flatten(1)).numpy()
    assert gap(outputs, projected) < TOLERANCE * max(1, np.abs(projected).max())


def test_a_range_is_the_sum_of_its_layers(backbone):
    layers = range(1, backbone.n_layers + 1)
    total = sum(made(backbone, f"values:{k}-{k}/avg").encode(SENTENCES) for k in layers)
    whole = made(backbone, f"values:1-{backbone.n_layers}/avg").encode(SENTENCES)
    assert gap(total, whole) < TOLERANCE * max(1, np.abs(whole).max())
    first = backbone.n_layers // 2 + 1 if backbone.causal else backbone.n_layers
    default = made(backbone, "values/avg").encode(SENTENCES)
    named = made(backbone, f"values:{first}-{backbone.n_layers}/avg").encode(SENTENCES)
    assert np.array_equal(default, named)


#: The maps to queries, keys and values, by the last part of their names; GPT-2 and ModernBERT have
#: one.
JOINT = {"c_attn", "Wqkv"}
VALUES = {"value", "v", "v_lin", "v_proj", *JOINT}
MAPS = VALUES | {"query", "key", "q", "k", "q_lin", "k_lin", "q_proj", "k_proj"}


def map_of(name):
    """Return the name of a parameter's module, of that the last part."""
    return name.rpartition(".")[0].rpartition(".")[2]


def test_nothing_behind_the_values_of_the_last_layer_runs(family, backbone):
    kind = backbone.to(torch.device("cpu"))  # a copy of its own
    encoder = made(kind, "values:2-2/avg")
    before = encoder.encode(SENTENCES)
    ran = []
    for name, module in kind.model.named_modules():
        if isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D":
            module.register_forward_hook(lambda *_, name=name: ran.append(name))
    encoder.encode(SENTENCES[:1])
    path = kind.family.projection.format(1)
    layer = path[: path.index("1") + 1]
    in_layer = {name.rpartition(".")[2] for name in ran if name.startswith(layer)}
    assert in_layer <= MAPS and in_layer & VALUES
    assert ran[-1].startswith(layer) and len(ran) > 3
    with torch.no_grad():
        for name, parameter in kind.model.named_parameters():
            in_layer = name.startswith(f"{layer}.") and map_of(name) not in VALUES
            norm_before = ("norm" in name or ".ln_1." in name) and family not in POST_NORM
            if (in_layer and not norm_before) or name.startswith(layer.replace("1", "2") + "."):
                parameter.add_(1)
    assert np.array_equal(encoder.encode(SENTENCES), before)


def test_padding_and_neighbours_change_no_values(backbone):
    for pooling in ("values/avg", "values/last-token", "values/ditto:1-1"):
        encoder = made(backbone, pooling)
        vectors = encoder.encode(SENTENCES)
        order = np.random.default_rng(0).permutation(len(SENTENCES))
        again = encoder.encode([SENTENCES[place] for place in order], batch_size=3)
        assert gap(again, vectors[order]) < TOLERANCE * max(1, np.abs(vectors).max())


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2"], indirect=True)
def test_grouped_queries_have_values_of_the_key_heads_and_weights_of_their_own(backbone, reference):
    encoder = made(backbone, "values:2-2/ditto:2-4")  # the last head; keys have two
    assert (
        encoder.width
        == backbone.n_key_heads * backbone.head_width
        < (backbone.n_heads * backbone.head_width)
    )
    expected = []
    for sentence in SENTENCES:
        ids = reference.ids("[X]", sentence)
        _, matrices = reference.states(ids)
        expected.append(plain.ditto(value_states(reference, ids)[0][1], matrices[1], 3))
    assert_near(encoder.encode(SENTENCES), expected)


def test_values_of_layers_that_share_one_map(tiny_backbone, plain_backbone):
    backbone = tiny_backbone("albert")
    reference = plain_backbone("albert")
    shared = backbone.model.encoder.albert_layer_groups[0].albert_layers[0].attention.value
    expected = []
    for sentence in SENTENCES:
        before = reference.states(reference.ids("[X]", sentence))[0][1]
        with torch.no_grad():
            expected.append(shared(before).mean(0))
    assert_near(made(backbone, "values:2-2/avg").encode(SENTENCES), expected)


def test_values_of_a_template_are_computed_from_its_shared_start(tiny_backbone, plain_backbone):
    backbone = tiny_backbone("llama")
    reference = plain_backbone("llama")
    recipe = RECIPES["knowledge"].replace(pooling="values:1-2/last-token")
    encoder = build_encoder(recipe, backbone=backbone)
    assert len(encoder.prompt.shared) > 5
    expected = [
        value_states(reference, row)[0][:2, -1].sum(0) for row in encoder.inputs(SENTENCES).ids
    ]
    assert_near(encoder.encode(SENTENCES), expected)


def test_values_that_do_not_exist_are_refused(tiny_backbone):
    with refusal(r"'values' needs .*'deberta-v2' .* does not open"):
        made(tiny_backbone("deberta-v2"), "values/avg")
    with refusal(r"'values:1-3' do not exist .*give values:A-B"):
        made(tiny_backbone("bert"), "values:1-3/avg")
    with refusal("'values:2' is not allowed; give values, or values:A-B"):
        made(tiny_backbone("bert"), "values:2/avg")


@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert", "gpt2", "llama"], indirect=True)
def test_gradients_through_values_are_those_of_the_plain_loop(family, backbone, reference):
    own = backbone.to(torch.device("cpu"))
    encoder = made(own, "values:1-2/avg")
    ids = encoder.inputs(SENTENCES[:1]).ids[0]
    batch = encoder.batch([ids])
    direction = torch.randn(encoder.width, generator=torch.Generator().manual_seed(0))
    hidden = own.run(batch, encoder.pooling.needs)
    (encoder.pooling.pool(batch, hidden)[0] @ direction).backward()
    found = {
        name: parameter.grad
        for name, parameter in own.model.named_parameters()
        if parameter.grad is not None
    }
    made_values = []
    hooks = [
        mapping.register_forward_hook(
            lambda _, given, output, name=name: made_values.append(
                output[0].chunk(3, -1)[-1] if name in ("c_attn", "Wqkv") else output[0]
            )
        )
        for name, mapping in value_maps(reference)
    ]
    model = reference.model.base_model
    model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    (sum(value.mean(0) for value in made_values[:2]) @ direction).backward()
    wanted = dict(model.named_parameters())
    assert {map_of(name) for name in found} & VALUES
    for name, gradient in found.items():
        expected = wanted[name].grad
        assert gap(gradient, expected) < 1e-4 * max(1, float(expected.abs().max())), name
    assert {name for name, one in wanted.items() if one.grad is not None and one.grad.any()} == {
        name for name, one in found.items() if one.any()
    }
