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
    "Pretrained": "pretraining.pretrain",
    "PromptcliError": "errors",
    "Recipe": "recipe",
    "SentenceIndex": "index.sentence_index",
    "Trained": "training.train",
    "UsageError": "errors",
    "add_to_index": "index.indexing",
    "analyze": "analysis.analyze",
    "build_index": "index.indexing",
    "check_index": "index.indexing",
    "check_parts": "data.vectors.part_folder",
    "check_template": "searching.templates",
    "compare": "evaluation.evaluator",
    "embed": "embedding.embed",
    "embed_dataset": "embedding.datasets",
    "embed_parts": "embedding.embed",
    "evaluate": "evaluation.evaluate",
    "export": "models.exchange",
    "fit": "training.fit",
    "import_model": "models.exchange",
    "load": "models.loading",
    "merge_parts": "data.vectors.part_folder",
    "list_models": "models.loading",
    "pretrain": "pretraining.pretrain",
    "pull": "models.exchange",
    "push": "models.exchange",
    "quantize": "data.vectors.precision",
    "read_vectors": "data.vectors",
    "reproduce": "reproducing.reproduce",
    "sample_parts": "data.vectors.part_folder",
    "search_index": "index.indexing",
    "search_heads": "searching.searches",
    "search_layers": "searching.searches",
    "search_templates": "searching.searches",
    "serve": "serving.serve",
    "similarity": "models.loading",
    "task_sentences": "evaluation.evaluate",
    "templates": "searching.templates",
    "train": "training.train",
    "training_settings": "training.train",
}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'promptcli' has no attribute {name!r}; it has: {', '.join(__all__)}")
    if name == "Encoder":
        importlib.import_module("promptcli.models.loading")  # with it encoders can be loaded and saved
    value = getattr(importlib.import_module(f"promptcli.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
