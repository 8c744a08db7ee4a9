"""Which published backbone a loaded one is, told by its content.

A folder's name alone is a claim: anybody may call any folder ``bert-base-uncased``.
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
class PublishedBackbone:
    """What is known of a backbone that others published."""

    family: str
    n_layers: int
    width: int
    rows: range  #: allowed numbers of word embeddings
    ids: Mapping[str, int] = field(default_factory=dict)  #: of some words of its vocabulary
    owners: tuple[str, ...] = ("",)  #: its owners on the hub; "" if it is called without one, too
    sha256: str | None = None  #: of its file of weights, where it is known here

    def describes(self, config: Mapping[str, Any]) -> bool:
        """Return whether a language model's configuration has this shape."""
        names = ("model_type", "num_hidden_layers", "hidden_size")
        shape = tuple(config.get(name) for name in names)
        if shape != (self.family, self.n_layers, self.width):
            return False
        return config.get("vocab_size") in self.rows

    def fits(self, backbone: "Backbone") -> bool:
        """Return whether a backbone has this shape and vocabulary."""
        shape = (backbone.provenance.family, backbone.n_layers, backbone.width)
        if shape != (self.family, self.n_layers, self.width):
            return False
        if len(backbone.token_rows) not in self.rows:
            return False
        read = backbone.tokenizer.encode(list(self.ids))
        return read == [[number] for number in self.ids.values()]


def _rows(count: int) -> range:
    return range(count, count + 1)


_UNCASED = {"hello": 7592, "world": 2088}
_BYTE_LEVEL = {"Hello": 31414, " world": 232}

#: By the last part of the name.
PUBLISHED: dict[str, PublishedBackbone] = {
    "bert-base-uncased": PublishedBackbone(
        "bert",
        12,
        768,
        _rows(30522),
        _UNCASED,
        ("", "google-bert"),
        "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3",
    ),
    "bert-base-cased": PublishedBackbone(
        "bert", 12, 768, _rows(28996), {"Hello": 8667, "world": 1362}, ("", "google-bert")
    ),
    "bert-large-uncased": PublishedBackbone(
        "bert", 24, 1024, _rows(30522), _UNCASED, ("", "google-bert")
    ),
    "roberta-base": PublishedBackbone(
        "roberta", 12, 768, _rows(50265), _BYTE_LEVEL, ("", "FacebookAI")
    ),
    "roberta-large": PublishedBackbone(
        "roberta", 24, 1024, _rows(50265), _BYTE_LEVEL, ("", "FacebookAI")
    ),
    "electra-base-discriminator": PublishedBackbone(
        "electra", 12, 768, _rows(30522), _UNCASED, ("google",)
    ),
    "bert-base-nli-stsb-mean-tokens": PublishedBackbone(
        "bert", 12, 768, _rows(30522), _UNCASED, ("sentence-transformers",)
    ),
    "Llama-2-7b-hf": PublishedBackbone("llama", 32, 4096, _rows(32000), owners=("meta-llama",)),
    "Llama-2-13b-hf": PublishedBackbone("llama", 40, 5120, _rows(32000), owners=("meta-llama",)),
    "Meta-Llama-3-8B": PublishedBackbone("llama", 32, 4096, _rows(128256), owners=("meta-llama",)),
    "Qwen2-7B": PublishedBackbone("qwen2", 28, 3584, _rows(152064), owners=("Qwen",)),
    "gemma-2-9b": PublishedBackbone("gemma2", 42, 3584, _rows(256000), owners=("google",)),
    # glove.840B.300d has 2,196,017 lines; a row more for sentences without a known word, and some
    # fewer where two lines have one word
    "GloVe": PublishedBackbone("glove", 0, 300, range(2_195_000, 2_196_019)),
}


def published_name(backbone: "Backbone") -> str | None:
    """Return the published or shipped backbone that one is, by the last part of its name, or None.

    Weights of a known hash decide. Of other published backbones no hash is known here: the hub's
    own copy is one, and a folder or file of that name with the same shape and vocabulary.
    """
    if backbone.provenance.family not in {known.family for known in PUBLISHED.values()}:
        return None
    for name, folder in SHIPPED.items():
        if backbone.provenance.weights_sha256 == _shipped_digest(folder):
            return name
    for name, known in PUBLISHED.items():
        if known.sha256 is not None and known.fits(backbone) and _has_weights(backbone, known):
            return name
    name = _claimed(backbone)
    published = PUBLISHED.get(name)
    if published is None or backbone.merged or not published.fits(backbone):
        return None
    from_hub = backbone.provenance.revision is not None
    if from_hub:
        owner = backbone.name.partition("@")[0].rpartition("/")[0]
        return name if owner in published.owners else None
    return name if published.sha256 is None else None


def _claimed(backbone: "Backbone") -> str:
    """Return the name under which a backbone would be published; word vectors have one."""
    return "GloVe" if backbone.words_only else last_part(backbone.name)


@functools.cache
def _shipped_digest(folder: Path) -> str:
    return weights_digest(folder)


def _has_weights(backbone: "Backbone", known: PublishedBackbone) -> bool:
    file = backbone.folder / _WEIGHTS
    return not backbone.merged and file.is_file() and sha256(file) == known.sha256
