"""The names of the package for type checkers; they are loaded on first use (PEP 562)."""

from promptcli.api.analyzing import analyze as analyze
from promptcli.api.encoders import fit as fit
from promptcli.api.encoders import load as load
from promptcli.api.encoders import models as models
from promptcli.api.encoders import similarity as similarity
from promptcli.api.evaluating import evaluate as evaluate
from promptcli.api.evaluating import task_sentences as task_sentences
from promptcli.api.exchange import export as export
from promptcli.api.exchange import import_model as import_model
from promptcli.api.exchange import pull as pull
from promptcli.api.exchange import push as push
from promptcli.api.pretraining import Pretrained as Pretrained
from promptcli.api.pretraining import pretrain as pretrain
from promptcli.api.searching import search_heads as search_heads
from promptcli.api.searching import search_layers as search_layers
from promptcli.api.searching import search_templates as search_templates
from promptcli.api.training import Trained as Trained
from promptcli.api.training import train as train
from promptcli.data.vectors import read_vectors as read_vectors
from promptcli.data.vectors.precision import quantize as quantize
from promptcli.encoder.encoder import Encoder as Encoder
from promptcli.errors import NotFoundError as NotFoundError
from promptcli.errors import PromptcliError as PromptcliError
from promptcli.errors import UsageError as UsageError
from promptcli.evaluation.evaluator import compare as compare
from promptcli.index.sentence_index import SentenceIndex as SentenceIndex
from promptcli.recipe import RECIPES as RECIPES
from promptcli.recipe import Recipe as Recipe
from promptcli.scaling.datasets import embed_dataset as embed_dataset

__version__: str
__all__: list[str]
