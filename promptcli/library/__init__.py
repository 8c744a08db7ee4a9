"""The library: what the commands do, as functions. ``import promptcli as pc`` finds all of it without loading anything.

Like the entrance, and unlike every other room, it reads the environment: PROMPTCLI_HOME says where models are kept.
What other programs and the hub need is in ``exchange``.
"""

from promptcli.data.vectors import read_vectors
from promptcli.data.vectors.precision import quantize
from promptcli.encoder.encoder import Encoder
from promptcli.encoder.recipe import RECIPES, Recipe
from promptcli.errors import PromptcliError
from promptcli.index.sentence_index import SentenceIndex
from promptcli.library.encoders import Trained, evaluate, fit, load, models, open_registry, similarity, train, transfer
from promptcli.scaling.datasets import embed_dataset
from promptcli.searching.heads import search_heads
from promptcli.searching.layers import search_layers
from promptcli.searching.template_search import search_templates

__all__ = [
    "RECIPES",
    "Encoder",
    "PromptcliError",
    "Recipe",
    "SentenceIndex",
    "Trained",
    "embed_dataset",
    "evaluate",
    "fit",
    "load",
    "models",
    "open_registry",
    "quantize",
    "read_vectors",
    "search_heads",
    "search_layers",
    "search_templates",
    "similarity",
    "train",
    "transfer",
]
