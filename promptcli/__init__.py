"""promptcli: sentence encoders from pre-trained language models, by prompts.

    >>> import promptcli as pc
    >>> encoder = pc.load("mini")
    >>> encoder.encode(["A cat sleeps.", "Two dogs play."]).shape
    (2, 256)

The names of ``__all__`` are loaded when they are first used, so that importing promptcli takes no time.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

__all__ = [
    "RECIPES",
    "Encoder",
    "PromptcliError",
    "Recipe",
    "SentenceIndex",
    "Trained",
    "embed_dataset",
    "evaluate",
    "export",
    "fit",
    "import_model",
    "load",
    "models",
    "pull",
    "push",
    "quantize",
    "read_vectors",
    "search_heads",
    "search_layers",
    "search_templates",
    "similarity",
    "train",
    "transfer",
]
#: Names that need more of transformers than an encoder does, so that the others do not wait for it.
_EXCHANGE = ("export", "import_model", "pull", "push")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'promptcli' has no attribute {name!r}; it has: {', '.join(__all__)}")
    module = "promptcli.library.exchange" if name in _EXCHANGE else "promptcli.library"
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
