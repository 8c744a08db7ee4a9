"""Private names of torch, and the plain ways in their place."""

import pytest
import torch

from promptcli.backbones import devices, kernels
from promptcli.backbones.kernels import cpu_computes_bfloat16


def test_this_release_of_torch_has_every_private_name():
    missing = [name for name, value in kernels.PRIVATE_NAMES.items() if value is None]
    assert missing == [], (
        f"torch {torch.__version__} has no {', '.join(missing)}: the plain ways are taken"
    )


@pytest.mark.parametrize("masked", [False, True])
def test_attention_without_the_fused_kernel_is_the_same(masked, monkeypatch):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 9, 8)
    mask = None
    if masked:
        mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
        mask[1, ..., 6:] = False
    output, logsumexp = kernels.attention_with_logsumexp(query, key, value, mask, 0.3, None)
    monkeypatch.delitem(kernels._FUSED, "cpu")
    plain_output, plain_logsumexp = kernels.attention_with_logsumexp(
        query, key, value, mask, 0.3, None
    )
    torch.testing.assert_close(output, plain_output, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logsumexp, plain_logsumexp, atol=1e-5, rtol=1e-5)


def test_products_without_onednns_name_are_torchs(monkeypatch):
    monkeypatch.setattr(kernels, "_ONEDNN_LINEAR", None)
    kernels.prefers_onednn.cache_clear()
    assert not kernels.prefers_onednn()
    kernels.prefers_onednn.cache_clear()


def test_a_cpu_that_torch_knows_nothing_of_computes_in_float32(monkeypatch):
    monkeypatch.setattr(kernels, "_AVX512_BFLOAT16", None)
    assert devices.choose_dtype("auto", "cpu") == torch.float32


@pytest.mark.parametrize(
    ("amd", "avx512_bfloat16", "amx", "expected"),
    [
        (True, True, False, True),
        (True, False, False, False),
        (False, True, True, True),
        (False, True, False, False),  # Intel's by AVX-512 alone is slower than float32
        (False, False, False, False),
    ],
)
def test_bfloat16_is_for_processors_on_which_it_is_faster(
    amd, avx512_bfloat16, amx, expected, monkeypatch
):
    monkeypatch.setattr(kernels, "_is_amd", lambda: amd)
    monkeypatch.setattr(kernels, "_AVX512_BFLOAT16", lambda: avx512_bfloat16)
    monkeypatch.setattr(kernels, "_AMX", lambda: amx)
    assert cpu_computes_bfloat16() == expected
