"""From a name to a backbone: one table of loaders by prefix. Reading a name loads nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.errors import UsageError

if TYPE_CHECKING:
    import torch

    from promptcli.backbones.backbone import Backbone


def _load_pretrained(name: str, **options: Any) -> "Backbone":
    from promptcli.backbones.pretrained import load_pretrained

    return load_pretrained(name, **options)


def _load_word_vectors(name: str, *, device: str, **_: Any) -> "Backbone":
    from promptcli.backbones.word_vectors import load_word_vectors

    return load_word_vectors(name, device=device)


@dataclass(frozen=True)
class Loader:
    """How one kind of backbone is loaded, and its facts before loading."""

    load: "Callable[..., Backbone]"
    is_local: Callable[[Path], bool]  #: whether a path is such a backbone
    words_only: bool = False  #: no language model: words are averaged, and that is all


#: Loader by prefix of the name; names without one are pre-trained language models.
LOADERS: dict[str, Loader] = {
    "": Loader(_load_pretrained, Path.is_dir),
    "glove:": Loader(_load_word_vectors, Path.is_file, words_only=True),
}


def load_backbone(
    name: str, *, device: str = "cpu", dtype: "torch.dtype | None" = None, words: bool = False
) -> "Backbone":
    """Load a backbone in eval mode.

    Args:
        name: A shipped name, a local folder, a hub id (``owner/name`` or ``name``, ``@revision`` after it allowed), or
            ``glove:FILE``.
        device: A torch device.
        dtype: Dtype of the weights; by default float32, and for causal models that of their files if the device
            computes in it.
        words: Word vectors will do; without it they are refused.
    """
    if words_only(name) and not words:
        raise UsageError(
            f"backbone {name!r} holds word vectors and no language model; they serve eval, embed, similarity and index"
            " with `model` static-avg"
        )
    return _split(name)[1].load(name, device=device, dtype=dtype)


def words_only(name: str) -> bool:
    """Return whether a backbone of that name is word vectors and no language model."""
    return _split(name)[1].words_only


def portable_name(name: str) -> str:
    """Return a name that means the same from every folder: a local folder or file becomes absolute."""
    prefix, loader = _split(name)
    path = Path(name.removeprefix(prefix))
    return f"{prefix}{path.resolve()}" if loader.is_local(path) else name


def _split(name: str) -> tuple[str, Loader]:
    return next((prefix, loader) for prefix, loader in reversed(LOADERS.items()) if name.startswith(prefix))
