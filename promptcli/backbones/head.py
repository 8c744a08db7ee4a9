"""The pre-trained head that predicts tokens: the transform T and the decoder."""

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
    """The transform T, (n, d) -> (n, d), and the decoder, (n, d) -> (n, v).

    T is dense, activation and LayerNorm; in causal models it is the identity. With a ``softcap`` c
    logits s become c tanh(s / c) (Gemma 2).
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
        """The decoder's matrix, (v, d): an output embedding for each token."""
        return self.decoder.get_parameter("weight")

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


def load_masked_lm(
    folder: Path, name: str, family: str, tensor_names: frozenset[str], **options: Any
) -> tuple[Any, MLMHead]:
    """Load a checkpoint as transformers' model with its masked-LM head, whose modules are the
    model's own; return both.
    """
    transform, decoder = FAMILIES[family].transform, FAMILIES[family].decoder
    no_head = _missing_head_error(name, f"masked-LM head ({next(iter(transform), decoder)})")
    if not transform or not any(tensor.startswith(f"{transform[0]}.") for tensor in tensor_names):
        raise no_head
    owner = f"the masked-LM head of backbone {name!r}"
    with opening(owner):
        model, report = load_model(transformers().AutoModelForMaskedLM, folder, **options)
    check_tensors(owner, report, tuple(f"{module}." for module in (*transform, decoder)))
    try:
        steps = [nn.GELU() if step == GELU else model.get_submodule(step) for step in transform]
        head = MLMHead(nn.Sequential(*steps), model.get_submodule(decoder))
    except AttributeError:  # newer checkpoints of DeBERTa have another layout
        raise no_head from None
    check_finite(owner, head)
    return model, head


def _missing_head_error(name: str, head: str) -> UsageError:
    return UsageError(
        f"backbone {name!r} has no {head}, which predicts tokens; use a checkpoint that was"
        " saved with it"
    )


def load_causal_head(
    folder: Path, name: str, config: Any, word_embeddings: Tensor, tensor_names: frozenset[str]
) -> MLMHead:
    """Return the head of a causal model: a matrix of the checkpoint, or ``word_embeddings`` (v, d)
    if the head is tied to them.
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
    return head
