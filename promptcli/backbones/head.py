"""The pre-trained head that predicts tokens: transform T and decoder, by name.

A checkpoint without a head is refused.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from promptcli.backbones.checking import check_finite, check_tensors
from promptcli.backbones.families import FAMILIES, GELU
from promptcli.backbones.kernels import cap_scores
from promptcli.backbones.transformers_loading import load_model, opening, transformers
from promptcli.errors import UsageError

_DECODER = "lm_head.weight"  # of every causal family


class MLMHead(nn.Module):
    """T (dense, activation, LayerNorm; the identity in causal models) and the decoder, (n, d) ->
    (n, d) -> (n, v).

    With a ``softcap`` c logits s become c tanh(s / c) (Gemma 2).
    """

    def __init__(
        self, transform: nn.Module, decoder: nn.Module, softcap: float | None = None
    ) -> None:
        super().__init__()
        self.transform = transform
        self.decoder = decoder
        self._softcap = softcap

    def to_hidden(self, vectors: Tensor) -> Tensor:
        """Return T(h), (n, d) float32."""
        hidden: Tensor = self.transform(vectors.to(self._dtype)).float()
        return hidden

    def to_logits(self, hidden: Tensor) -> Tensor:
        """Return decoder(T(h)) with its bias, (n, v) float32."""
        logits = self.decoder(hidden.to(self._dtype)).float()
        return cap_scores(logits, self._softcap)

    @property
    def output_embeddings(self) -> Tensor:
        """The decoder's matrix, (v, d): one output embedding a token."""
        return self.decoder.get_parameter("weight")

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


def load_head(folder: Path, name: str, family: str, tensor_names: frozenset[str]) -> MLMHead:
    """Load the masked-LM head of a checkpoint."""
    # not called: any attention will do, and this one always exists
    _, head = load_masked_lm(folder, name, family, tensor_names, attn_implementation="eager")
    head.eval().requires_grad_(False)
    return head


def load_masked_lm(
    folder: Path, name: str, family: str, tensor_names: frozenset[str], **options: Any
) -> tuple[Any, MLMHead]:
    """Load a checkpoint as transformers' model with its masked-LM head; return both. The head
    consists of the model's own modules.
    """
    row = FAMILIES[family]
    lacking = _missing_head_error(
        name, f"masked-LM head ({next(iter(row.transform), row.decoder)})"
    )
    if not row.transform or not any(
        tensor.startswith(row.transform[0] + ".") for tensor in tensor_names
    ):
        raise lacking
    what = f"the masked-LM head of backbone {name!r}"
    with opening(what):
        model, info = load_model(transformers().AutoModelForMaskedLM, folder, **options)
    parts = tuple(f"{name}." for name in (*row.transform, row.decoder))
    check_tensors(what, info, parts)
    try:
        steps = [nn.GELU() if step == GELU else model.get_submodule(step) for step in row.transform]
        head = MLMHead(nn.Sequential(*steps), model.get_submodule(row.decoder))
    except AttributeError:  # DeBERTa's newer checkpoints are laid out otherwise
        raise lacking from None
    check_finite(what, head)
    return model, head


def _missing_head_error(name: str, head: str) -> UsageError:
    return UsageError(
        f"backbone {name!r} has no {head}, which predicts tokens; take a checkpoint saved with it"
    )


def load_causal_head(
    folder: Path, name: str, config: Any, word_embeddings: Tensor, tensor_names: frozenset[str]
) -> MLMHead:
    """Return the head of a causal model: its one matrix, or ``word_embeddings`` (v, d) if it is
    tied to them.
    """
    rows = word_embeddings
    if _DECODER in tensor_names:
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                if _DECODER in file.keys():
                    rows = file.get_tensor(_DECODER)
    elif not config.tie_word_embeddings:
        raise _missing_head_error(name, f"head ({_DECODER})")
    decoder = nn.Linear(rows.size(1), rows.size(0), bias=False, device="meta")
    decoder.weight = nn.Parameter(rows.detach(), requires_grad=False)
    head = MLMHead(nn.Identity(), decoder, getattr(config, "final_logit_softcapping", None))
    check_finite(f"the head of backbone {name!r}", head)
    return head.eval()
