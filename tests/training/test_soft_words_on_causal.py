"""OptiPrompt on causal models: learned tokens before and behind the text of a frozen model."""

import numpy as np
import pytest
import torch

from promptcli.backbones.states import Needs
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.prompts.soft_template import TENSOR
from promptcli.recipe import Recipe
from tests import training_steps
from tests.comparing import gap
from tests.reference import losses, plain
from tests.tiny import SENTENCES
from tests.training_steps import learner_of

FAMILIES = ["llama", "gpt2", "opt", "gemma3_text"]
TEMPLATE = "This : [X] in a word :"
COLUMNS = {
    "sentences": [SENTENCES[:4]],
    "pairs": [SENTENCES[:4], SENTENCES[4:8]],
    "triplets": [SENTENCES[:4], SENTENCES[4:8], SENTENCES[8:12]],
}


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


def made(family, tiny_folder, supervised=False, **changes):
    settings = {"template": (TEMPLATE,), "dropout": 0.0, **changes}
    return learner_of("optiprompt", tiny_folder(family), supervised, **settings)


def plain_vector(reference, encoder, row):
    """The last token's state, the learned vectors among the input's embeddings."""
    embedded = reference.rows()[row].clone()
    for vector, place in zip(encoder.tensors()[TENSOR], encoder.prompt.positions, strict=True):
        embedded[place] = vector
    scale = getattr(reference.model.get_input_embeddings(), "embed_scale", 1)
    with torch.no_grad():
        decoder = reference.model.get_decoder()
        return decoder(inputs_embeds=(embedded * scale)[None]).last_hidden_state[0, -1]


def test_vectors_are_those_of_the_loop_over_embeddings(family, tiny_folder):
    reference = plain.Plain(tiny_folder(family), causal=True)
    encoder = made(family, tiny_folder).as_encoder()
    assert encoder.recipe.prompt == f"soft-template:{TEMPLATE}"
    assert encoder.recipe.pooling == "last/last-token"
    places = encoder.prompt.positions
    assert min(places) < 0 < max(places) and -1 in places
    tensors = encoder.tensors()
    torch.manual_seed(0)
    moved = {TENSOR: tensors[TENSOR] + torch.randn_like(tensors[TENSOR])}
    for each in (encoder, TorchEncoder(encoder.recipe, encoder.backbone, moved)):
        rows = each.inputs(SENTENCES).ids
        for row, vector in zip(rows, each.encode(SENTENCES), strict=True):
            expected = plain_vector(reference, each, row).numpy()
            assert gap(vector, expected) < 1e-5 * max(1, np.abs(expected).max())
    again = TorchEncoder(encoder.recipe, encoder.backbone, encoder.tensors())
    assert np.array_equal(again.encode(SENTENCES), encoder.encode(SENTENCES))


@pytest.mark.parametrize("kind", COLUMNS)
def test_the_loss_is_simcses_and_only_the_rows_learn(kind, tiny_folder):
    learner = made("llama", tiny_folder, supervised=kind != "sentences", temperature=0.05)
    columns = COLUMNS[kind]
    before = {name: tensor.clone() for name, tensor in learner.backbone.model.state_dict().items()}
    loss, gradients = training_steps.gradients(learner, columns=columns)
    encoder = learner.as_encoder()
    plain_text = encoder.recipe.replace(period=False)
    reader = TorchEncoder(plain_text, learner.backbone, encoder.tensors())
    sides = columns if len(columns) > 1 else [*columns, *columns]
    vectors = [torch.from_numpy(reader.encode(side)) for side in sides]
    count = len(columns[0])
    hard = [[vector] for vector in vectors[2]] if kind == "triplets" else [[]] * count
    none = [[False] * count for _ in range(count)]
    none_hard = [[[False]] * count for _ in range(count)]
    expected = losses.infonce(*vectors[:2], hard, 0.05, none, none_hard)
    assert loss == pytest.approx(float(expected), rel=1e-4)
    ((name, gradient),) = gradients.items()
    assert "soft-template" in name
    assert gradient.shape == encoder.tensors()[TENSOR].shape
    assert (gradient.abs().amax(1) > 0).all()
    step = training_steps.step_of(learner)
    step.gradients(0, step.tokenize(columns))
    for tensor in learner.trainable().values():
        tensor.data.sub_(tensor.grad)
    after = learner.backbone.model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_cut_text_keeps_the_tokens_and_those_behind_change_no_state_before_them(
    family, tiny_folder
):
    encoder = made(family, tiny_folder).as_encoder()
    behind = sum(place < 0 for place in encoder.prompt.positions)
    short = TorchEncoder(encoder.recipe.replace(max_length=20), encoder.backbone, encoder.tensors())
    inputs = short.inputs([" ".join(SENTENCES)])
    (row,) = inputs.ids
    assert inputs.truncated.tolist() == [True] and len(row) == 20
    assert row[-behind:] == encoder.inputs(SENTENCES[:1]).ids[0][-behind:]
    needs = Needs(layers=frozenset({encoder.backbone.n_layers}))
    moved = encoder.tensors()[TENSOR].clone()
    moved[-behind:] += torch.linspace(-1, 1, moved.size(1))
    other = TorchEncoder(encoder.recipe, encoder.backbone, {TENSOR: moved})
    states = [
        each.backbone.run(each.batch([row]), needs).layers[encoder.backbone.n_layers][0]
        for each in (encoder, other)
    ]
    assert torch.allclose(states[0][:-behind], states[1][:-behind], atol=1e-6)
    assert gap(states[0][-1], states[1][-1]) > 1e-3


def test_a_masked_model_is_read_at_its_mask_as_before(bert_folder):
    recipe = learner_of("optiprompt", bert_folder).as_encoder().recipe
    assert recipe.replace(backbone="x") == Recipe(
        "x",
        prompt='soft-template:This sentence : "[X]" means [MASK] .',
        pooling="last/mask",
        period=True,
        transforms=recipe.transforms,
    )
