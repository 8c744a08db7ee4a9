"""Sliding windows over long inputs: block by block, and the same as transformers' own attention."""

import pytest
import torch
import transformers as hf

from promptcli.backbones import attention_hook, kernels
from promptcli.backbones.attention_hook import AttentionHook, Injected, Recorded
from promptcli.backbones.kernels import SlidingMask
from promptcli.backbones.states import Needs

LONG = kernels.MIN_BLOCKED_LENGTH
_SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 16}
_SIZES |= {
    "num_attention_heads": 4,
    "max_position_embeddings": 4 * LONG,
    "pad_token_id": 0,
}
_SIZES |= {"bos_token_id": 1, "eos_token_id": 2}
LENGTHS = (LONG + 300, LONG - 100)


def modernbert():
    layers = ["full_attention", "sliding_attention"]
    config = hf.ModernBertConfig(
        **_SIZES, local_attention=64, layer_types=layers, cls_token_id=1, sep_token_id=2
    )
    return hf.ModernBertModel(config).eval()


def mistral():
    config = hf.MistralConfig(**_SIZES, num_key_value_heads=2, sliding_window=64)
    return hf.MistralModel(config).eval()


def inputs():
    torch.manual_seed(1)
    ids = torch.randint(3, 50, (2, LENGTHS[0]))
    real = torch.arange(LENGTHS[0]) < torch.tensor(LENGTHS)[:, None]
    return ids, real


def states(model, ids, mask, implementation, **options):
    model.set_attn_implementation(implementation)
    with torch.inference_mode():
        return model(input_ids=ids, attention_mask=mask, **options).last_hidden_state


@pytest.fixture(params=[modernbert, mistral], ids=["modernbert", "mistral"])
def model(request):
    torch.manual_seed(0)
    attention_hook.register_attention()
    return request.param()


@pytest.fixture
def no_full_mask(monkeypatch):
    def refused(mask):
        raise AssertionError("the full mask was made")

    monkeypatch.setattr(SlidingMask, "full", refused)


@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.usefixtures("no_full_mask")
def test_a_long_input_under_a_window_is_as_in_transformers(model, padded):
    ids, real = inputs()
    mask = None
    if padded:
        mask = real.long()
    else:
        real = torch.ones_like(real)
    own = states(model, ids, mask, "eager")
    ours = states(model, ids, mask, attention_hook.NAME, hook=AttentionHook())
    torch.testing.assert_close(ours[real], own[real], atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("no_full_mask")
def test_no_block_of_a_mask_grows_with_the_square_of_the_length(model, monkeypatch):
    cells = []
    between = SlidingMask._between

    def counted(mask, queries, keys):
        block = between(mask, queries, keys)
        cells.append(block.shape[-2] * block.shape[-1])
        return block

    monkeypatch.setattr(SlidingMask, "_between", counted)
    ids, _ = inputs()
    states(model, ids[:1], None, attention_hook.NAME, hook=AttentionHook())
    window = model.config.sliding_window
    assert cells
    assert max(cells) <= kernels._QUERIES_PER_BLOCK * (kernels._QUERIES_PER_BLOCK + 2 * window)


def test_the_diagonal_of_a_long_input_is_that_of_the_matrix(model):
    ids, real = inputs()
    call = AttentionHook(recorded=Recorded(Needs(diagonals=frozenset({0, 1}))))
    states(model, ids, real.long(), attention_hook.NAME, hook=call)
    matrices = AttentionHook(recorded=Recorded(Needs(matrices=frozenset({0, 1}))))
    states(model, ids, real.long(), attention_hook.NAME, hook=matrices)
    for layer in (0, 1):
        expected = matrices.recorded.matrices[layer].diagonal(dim1=-2, dim2=-1)
        for row, length in enumerate(LENGTHS):
            torch.testing.assert_close(
                call.recorded.diagonals[layer][row, :, :length], expected[row, :, :length]
            )


def test_a_prefix_over_a_long_input_is_the_same_under_the_whole_mask(model, monkeypatch):
    heads = getattr(model.config, "num_key_value_heads", None) or 4
    ids, real = inputs()
    prefix = [tuple(torch.randn(2, heads, 3, 4)) for _ in range(2)]
    ours = states(
        model, ids, real.long(), attention_hook.NAME, hook=AttentionHook(Injected(prefix=prefix))
    )
    monkeypatch.setattr(attention_hook, "MIN_BLOCKED_LENGTH", 10 * LONG)
    expected = states(
        model, ids, real.long(), attention_hook.NAME, hook=AttentionHook(Injected(prefix=prefix))
    )
    torch.testing.assert_close(ours[real], expected[real])


def test_below_the_limit_the_mask_is_transformers_own(model):
    ids, _ = inputs()
    own = states(model, ids[:, : LONG - 1], None, "eager")
    ours = states(model, ids[:, : LONG - 1], None, attention_hook.NAME, hook=AttentionHook())
    torch.testing.assert_close(ours, own, atol=1e-5, rtol=1e-5)
