"""Recognition of published backbones by their content.

A folder's name proves nothing: any folder may be called ``bert-base-uncased``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from promptcli.backbones.model_folder import (
    CONFIG,
    SHIPPED_BACKBONES,
    WEIGHTS,
    ModelFolder,
    base_of,
    locate,
    shipped_digest,
)
from promptcli.named_templates import last_part
from promptcli.notes import without_network
from promptcli.storage.files import sha256

if TYPE_CHECKING:
    from promptcli.backbones.backbone import Backbone


@dataclass(frozen=True)
class Shape:
    """The size of a language model by its configuration; None if the configuration has no value."""

    family: str
    width: int  #: d, of the hidden states
    layers: int | None = None
    heads: int | None = None
    vocabulary: int | None = None


#: Size of a language model -> configuration fields that may hold it.
_SIZE_FIELDS = {
    "width": ("hidden_size", "d_model", "n_embd", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocabulary": ("vocab_size",),
}


def shape_of(name: str) -> Shape:
    """Return the shape of a backbone from its config.json; an adapter has the shape of its base."""
    with without_network():
        folder = locate(name)
        base = base_of(folder)
    return folder_shape(folder) if base is None else shape_of(base)


def folder_shape(folder: ModelFolder) -> Shape:
    """Return the shape of the language model in a folder, from its config.json."""
    sizes: dict[str, Any] = {}
    for size, fields in _SIZE_FIELDS.items():
        values = map(folder.config.get, fields)
        sizes[size] = next((value for value in values if isinstance(value, int)), None)
    if sizes["width"] is None:
        raise folder.error(f"has a {CONFIG} that names no width")
    return Shape(folder.family, **sizes)


@dataclass(frozen=True)
class PublishedBackbone:
    """The known facts about a published backbone."""

    shape: Shape
    owners: tuple[str, ...]  #: its owners on the hub; "" if the name is also used without an owner
    ids: Mapping[str, int] = field(default_factory=dict)  #: some words of its vocabulary -> ids
    sha256: str | None = None  #: of its file of weights, if known
    rows: range | None = None  #: allowed numbers of word embeddings; None for that of its shape

    def fits(self, backbone: "Backbone") -> bool:
        """Return whether a backbone has this shape and vocabulary."""
        shape = self.shape
        sizes = (backbone.provenance.family, backbone.n_layers, backbone.width)
        if sizes != (shape.family, shape.layers, shape.width):
            return False
        if len(backbone.word_embeddings) not in (self.rows or (shape.vocabulary,)):
            return False
        ids = [[number] for number in self.ids.values()]
        return backbone.tokenizer.encode(list(self.ids)) == ids


_UNCASED = {"hello": 7592, "world": 2088}
_CASED = {"Hello": 8667, "world": 1362}
_BYTE_LEVEL = {"Hello": 31414, " world": 232}
_BERT_BASE_SHA256 = "68d45e234eb4a928074dfd868cead0219ab85354cc53d20e772753c6bb9169d3"


def _published(
    owner: str, *shape: Any, ids: Mapping[str, int] | None = None, sha256: str | None = None
) -> PublishedBackbone:
    """Return a backbone with a shape: family, width, layers, heads, vocabulary. Older backbones are
    also named without their owner.
    """
    owners = ("", owner) if owner in ("google-bert", "FacebookAI") else (owner,)
    return PublishedBackbone(Shape(*shape), owners, ids or {}, sha256)


#: Name without its owner -> the backbone. A folder with the shape of one may also hold another
#: model of that design.
PUBLISHED: dict[str, PublishedBackbone] = {
    "bert-base-uncased": _published(
        "google-bert", "bert", 768, 12, 12, 30_522, ids=_UNCASED, sha256=_BERT_BASE_SHA256
    ),
    "bert-base-cased": _published("google-bert", "bert", 768, 12, 12, 28_996, ids=_CASED),
    "bert-large-uncased": _published("google-bert", "bert", 1024, 24, 16, 30_522, ids=_UNCASED),
    "roberta-base": _published("FacebookAI", "roberta", 768, 12, 12, 50_265, ids=_BYTE_LEVEL),
    "roberta-large": _published("FacebookAI", "roberta", 1024, 24, 16, 50_265, ids=_BYTE_LEVEL),
    "electra-base-discriminator": _published(
        "google", "electra", 768, 12, 12, 30_522, ids=_UNCASED
    ),
    "bert-base-nli-stsb-mean-tokens": _published(
        "sentence-transformers", "bert", 768, 12, 12, 30_522, ids=_UNCASED
    ),
    "opt-125m": _published("facebook", "opt", 768, 12, 12, 50_272),
    "opt-350m": _published("facebook", "opt", 1024, 24, 16, 50_272),
    "opt-1.3b": _published("facebook", "opt", 2048, 24, 32, 50_272),
    "opt-2.7b": _published("facebook", "opt", 2560, 32, 32, 50_272),
    "opt-6.7b": _published("facebook", "opt", 4096, 32, 32, 50_272),
    "opt-13b": _published("facebook", "opt", 5120, 40, 40, 50_272),
    "llama-7b": _published("huggyllama", "llama", 4096, 32, 32, 32_000),
    "llama-13b": _published("huggyllama", "llama", 5120, 40, 40, 32_000),
    "llama-30b": _published("huggyllama", "llama", 6656, 60, 52, 32_000),
    "Llama-2-7b-hf": _published("meta-llama", "llama", 4096, 32, 32, 32_000),
    "Llama-2-13b-hf": _published("meta-llama", "llama", 5120, 40, 40, 32_000),
    "Meta-Llama-3-8B": _published("meta-llama", "llama", 4096, 32, 32, 128_256),
    "Mistral-7B-v0.1": _published("mistralai", "mistral", 4096, 32, 32, 32_000),
    "Qwen2-7B": _published("Qwen", "qwen2", 3584, 28, 28, 152_064),
    "gemma-2-9b": _published("google", "gemma2", 3584, 42, 16, 256_000),
    # glove.840B.300d has 2,196,017 lines. Lines with the same word share a row, and sentences
    # without a known word have a row.
    "GloVe": PublishedBackbone(Shape("glove", 300, 0), ("",), rows=range(2_195_000, 2_196_019)),
}


def published_name(backbone: "Backbone") -> str | None:
    """Return the name, without owner, of the published or shipped backbone equal to this one, or
    None.

    A known hash of the weights decides. If no hash is known, the hub's own copy counts, and so does
    a folder or file of that name with the same shape and vocabulary.
    """
    if backbone.provenance.family not in {other.shape.family for other in PUBLISHED.values()}:
        return None
    for name, folder in SHIPPED_BACKBONES.items():
        if backbone.provenance.weights_sha256 == shipped_digest(folder):
            return name
    if backbone.merged:
        return None
    for name, published in PUBLISHED.items():
        if published.sha256 is None or not published.fits(backbone):
            continue
        file = backbone.folder / WEIGHTS
        if file.is_file() and sha256(file) == published.sha256:
            return name
    name = "GloVe" if backbone.is_word_table else last_part(backbone.name)
    if name not in PUBLISHED or not PUBLISHED[name].fits(backbone):
        return None
    published = PUBLISHED[name]
    if backbone.provenance.revision is None:  # not from the hub
        return name if published.sha256 is None else None
    owner = backbone.name.partition("@")[0].rpartition("/")[0]
    return name if owner in published.owners else None
