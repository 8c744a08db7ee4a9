"""From a name to a backbone. Reading a name loads nothing."""

from typing import TYPE_CHECKING

from promptcli.backbones.names import words_only
from promptcli.errors import UsageError
from promptcli.notes import keyword

if TYPE_CHECKING:
    import torch

    from promptcli.backbones.backbone import Backbone


def load_backbone(
    name: str,
    *,
    device: str = "cpu",
    dtype: "torch.dtype | None" = None,
    allow_word_vectors: bool = False,
) -> "Backbone":
    """Load a backbone in eval mode: a shipped name, a local folder, a hub id (``@revision`` after
    it), a GGUF file, ``glove:FILE``.

    ``dtype`` is by default float32, and for causal models that of their files if the device
    computes in it; ``allow_word_vectors``: accept word vectors too, which are refused otherwise.
    """
    if not words_only(name):
        from promptcli.backbones.pretrained import load_pretrained

        return load_pretrained(name, device=device, dtype=dtype)
    if not allow_word_vectors:
        raise UsageError(
            f"backbone {name!r} holds word vectors and no language model; they are for"
            f" {keyword('model')} static-avg"
        )
    from promptcli.backbones.word_vectors import load_word_vectors

    return load_word_vectors(name, device=device)
