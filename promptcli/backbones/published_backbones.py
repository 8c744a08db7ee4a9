"""Which published backbone a loaded one is, told by its content.

A folder's name alone is a claim: any folder may be called ``bert-base-uncased``.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from promptcli.backbones.locating import SHIPPED, weights_digest
from promptcli.named_templates import last_part
from promptcli.storage.files import sha256

if TYPE_CHECKING:
    from promptcli.backbones.backbone import Backbone

_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Shape:
    """The size of a language model, as its configuration says it; None: it does not."""

    family: str
    width: int  #: of the hidden states
    layers: int | None = None
    heads: int | None = None
    vocabulary: int | None = None


@dataclass(frozen=True)
class PublishedBackbone:
    """What is known of a backbone that others published."""

    shape: Shape
    owners: tuple[str, ...]  #: its owners on the hub; "" if it is called without one, too
    ids: Mapping[str, int] = field(default_factory=dict)  #: of some words of its vocabulary
    sha256: str | None = None  #: of its file of weights, where it is known here
    rows: range | None = None  #: allowed numbers of word embeddings; None: that of its shape

    def describes(self, config: Mapping[str, Any]) -> bool:
        """Return whether a language model's configuration has this shape."""
        names = ("model_type", "num_hidden_layers", "hidden_size", "vocab_size")
        return self._is_of(*(config.get(name) for name in names))

    def fits(self, backbone: "Backbone") -> bool:
        """Return whether a backbone has this shape and vocabulary."""
        family, rows = backbone.provenance.family, len(backbone.token_rows)
        if not self._is_of(family, backbone.n_layers, backbone.width, rows):
            return False
        read = backbone.tokenizer.encode(list(self.ids))
        return read == [[number] for number in self.ids.values()]

    def _is_of(self, family: Any, layers: Any, width: Any, vocabulary: Any) -> bool:
        shape = self.shape
        if (family, layers, width) != (shape.family, shape.layers, shape.width):
            return False
        return vocabulary == shape.vocabulary if self.rows is None else vocabulary in self.rows


_UNCASED = {"hello": 7592, "world": 2088}
_BYTE_LEVEL = {"Hello": 31414, " world": 232}
_BERT_BASE_SHA256 = "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3"

#: By the last part of the name. A folder of one of these shapes is a copy of it, or a model made
#: like it.
PUBLISHED: dict[str, PublishedBackbone] = {
    "bert-base-uncased": PublishedBackbone(
        Shape("bert", 768, 12, 12, 30_522), ("", "google-bert"), _UNCASED, _BERT_BASE_SHA256
    ),
    "bert-base-cased": PublishedBackbone(
        Shape("bert", 768, 12, 12, 28_996), ("", "google-bert"), {"Hello": 8667, "world": 1362}
    ),
    "bert-large-uncased": PublishedBackbone(
        Shape("bert", 1024, 24, 16, 30_522), ("", "google-bert"), _UNCASED
    ),
    "roberta-base": PublishedBackbone(
        Shape("roberta", 768, 12, 12, 50_265), ("", "FacebookAI"), _BYTE_LEVEL
    ),
    "roberta-large": PublishedBackbone(
        Shape("roberta", 1024, 24, 16, 50_265), ("", "FacebookAI"), _BYTE_LEVEL
    ),
    "electra-base-discriminator": PublishedBackbone(
        Shape("electra", 768, 12, 12, 30_522), ("google",), _UNCASED
    ),
    "bert-base-nli-stsb-mean-tokens": PublishedBackbone(
        Shape("bert", 768, 12, 12, 30_522), ("sentence-transformers",), _UNCASED
    ),
    "opt-125m": PublishedBackbone(Shape("opt", 768, 12, 12, 50_272), ("facebook",)),
    "opt-350m": PublishedBackbone(Shape("opt", 1024, 24, 16, 50_272), ("facebook",)),
    "opt-1.3b": PublishedBackbone(Shape("opt", 2048, 24, 32, 50_272), ("facebook",)),
    "opt-2.7b": PublishedBackbone(Shape("opt", 2560, 32, 32, 50_272), ("facebook",)),
    "opt-6.7b": PublishedBackbone(Shape("opt", 4096, 32, 32, 50_272), ("facebook",)),
    "opt-13b": PublishedBackbone(Shape("opt", 5120, 40, 40, 50_272), ("facebook",)),
    "llama-7b": PublishedBackbone(Shape("llama", 4096, 32, 32, 32_000), ("huggyllama",)),
    "llama-13b": PublishedBackbone(Shape("llama", 5120, 40, 40, 32_000), ("huggyllama",)),
    "llama-30b": PublishedBackbone(Shape("llama", 6656, 60, 52, 32_000), ("huggyllama",)),
    "Llama-2-7b-hf": PublishedBackbone(Shape("llama", 4096, 32, 32, 32_000), ("meta-llama",)),
    "Llama-2-13b-hf": PublishedBackbone(Shape("llama", 5120, 40, 40, 32_000), ("meta-llama",)),
    "Meta-Llama-3-8B": PublishedBackbone(Shape("llama", 4096, 32, 32, 128_256), ("meta-llama",)),
    "Mistral-7B-v0.1": PublishedBackbone(Shape("mistral", 4096, 32, 32, 32_000), ("mistralai",)),
    "Qwen2-7B": PublishedBackbone(Shape("qwen2", 3584, 28, 28, 152_064), ("Qwen",)),
    "gemma-2-9b": PublishedBackbone(Shape("gemma2", 3584, 42, 16, 256_000), ("google",)),
    # glove.840B.300d has 2,196,017 lines; a row more for sentences without a known word, and some
    # fewer where two lines have one word
    "GloVe": PublishedBackbone(Shape("glove", 300, 0), ("",), rows=range(2_195_000, 2_196_019)),
}


def published_name(backbone: "Backbone") -> str | None:
    """Return the published or shipped backbone that one is, by the last part of its name, or None.

    Weights of a known hash decide. Of other published backbones no hash is known here: the hub's
    own copy is one, and a folder or file of that name with the same shape and vocabulary.
    """
    if backbone.provenance.family not in {known.shape.family for known in PUBLISHED.values()}:
        return None
    for name, folder in SHIPPED.items():
        if backbone.provenance.weights_sha256 == _shipped_digest(folder):
            return name
    for name, known in PUBLISHED.items():
        if known.sha256 is not None and known.fits(backbone) and _has_weights(backbone, known):
            return name
    name = _name_of(backbone)
    published = PUBLISHED.get(name)
    if published is None or backbone.merged or not published.fits(backbone):
        return None
    from_hub = backbone.provenance.revision is not None
    if from_hub:
        owner = backbone.name.partition("@")[0].rpartition("/")[0]
        return name if owner in published.owners else None
    return name if published.sha256 is None else None


def _name_of(backbone: "Backbone") -> str:
    """Return the name under which a backbone would be published; word vectors have one."""
    return "GloVe" if backbone.words_only else last_part(backbone.name)


@functools.cache
def _shipped_digest(folder: Path) -> str:
    return weights_digest(folder)


def _has_weights(backbone: "Backbone", known: PublishedBackbone) -> bool:
    file = backbone.folder / _WEIGHTS
    return not backbone.merged and file.is_file() and sha256(file) == known.sha256
