"""The names of the package for type checkers; they are loaded on first use (PEP 562)."""

from promptcli.library import RECIPES as RECIPES
from promptcli.library import Encoder as Encoder
from promptcli.library import PromptcliError as PromptcliError
from promptcli.library import Recipe as Recipe
from promptcli.library import SentenceIndex as SentenceIndex
from promptcli.library import Trained as Trained
from promptcli.library import embed_dataset as embed_dataset
from promptcli.library import evaluate as evaluate
from promptcli.library import fit as fit
from promptcli.library import load as load
from promptcli.library import models as models
from promptcli.library import quantize as quantize
from promptcli.library import read_vectors as read_vectors
from promptcli.library import search_heads as search_heads
from promptcli.library import search_layers as search_layers
from promptcli.library import search_templates as search_templates
from promptcli.library import similarity as similarity
from promptcli.library import train as train
from promptcli.library import transfer as transfer
from promptcli.library.exchange import export as export
from promptcli.library.exchange import import_model as import_model
from promptcli.library.exchange import pull as pull
from promptcli.library.exchange import push as push

__version__: str
__all__: list[str]
