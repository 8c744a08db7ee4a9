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

#: Name -> the module that it is in.
_MODULES = {
    "RECIPES": "recipe",
    "Encoder": "encoder.encoder",
    "NotFoundError": "errors",
    "Pretrained": "api.pretraining",
    "PromptcliError": "errors",
    "Recipe": "recipe",
    "SentenceIndex": "index.sentence_index",
    "Trained": "api.training",
    "UsageError": "errors",
    "add_to_index": "api.indexing",
    "analyze": "api.analyzing",
    "build_index": "api.indexing",
    "check_index": "api.indexing",
    "check_parts": "data.vectors.part_folder",
    "check_template": "api.templates",
    "compare": "evaluation.evaluator",
    "embed": "api.embedding",
    "embed_dataset": "scaling.datasets",
    "embed_parts": "api.embedding",
    "evaluate": "api.evaluating",
    "export": "api.exchange",
    "fit": "api.fitting",
    "import_model": "api.exchange",
    "load": "api.encoders",
    "merge_parts": "data.vectors.part_folder",
    "models": "api.encoders",
    "pretrain": "api.pretraining",
    "pull": "api.exchange",
    "push": "api.exchange",
    "quantize": "data.vectors.precision",
    "read_vectors": "data.vectors",
    "reproduce": "api.reproducing",
    "sample_parts": "data.vectors.part_folder",
    "search_index": "api.indexing",
    "search_heads": "api.searching",
    "search_layers": "api.searching",
    "search_templates": "api.searching",
    "serve": "api.serving",
    "similarity": "api.encoders",
    "task_sentences": "api.evaluating",
    "templates": "api.templates",
    "train": "api.training",
    "training_settings": "api.training",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'promptcli' has no attribute {name!r}; it has: {', '.join(__all__)}")
    if name == "Encoder":
        importlib.import_module("promptcli.api.encoders")  # with it encoders can be loaded and saved
    value = getattr(importlib.import_module(f"promptcli.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
