"""The names of the package for type checkers; they are loaded on first use (PEP 562)."""

from promptcli.api.analyzing import analyze as analyze
from promptcli.api.embedding import embed as embed
from promptcli.api.embedding import embed_parts as embed_parts
from promptcli.api.encoders import load as load
from promptcli.api.encoders import models as models
from promptcli.api.encoders import similarity as similarity
from promptcli.api.evaluating import evaluate as evaluate
from promptcli.api.evaluating import task_sentences as task_sentences
from promptcli.api.exchange import export as export
from promptcli.api.exchange import import_model as import_model
from promptcli.api.exchange import pull as pull
from promptcli.api.exchange import push as push
from promptcli.api.fitting import fit as fit
from promptcli.api.indexing import add_to_index as add_to_index
from promptcli.api.indexing import build_index as build_index
from promptcli.api.indexing import check_index as check_index
from promptcli.api.indexing import search_index as search_index
from promptcli.api.pretraining import Pretrained as Pretrained
from promptcli.api.pretraining import pretrain as pretrain
from promptcli.api.reproducing import reproduce as reproduce
from promptcli.api.searching import search_heads as search_heads
from promptcli.api.searching import search_layers as search_layers
from promptcli.api.searching import search_templates as search_templates
from promptcli.api.serving import serve as serve
from promptcli.api.templates import check_template as check_template
from promptcli.api.templates import templates as templates
from promptcli.api.training import Trained as Trained
from promptcli.api.training import train as train
from promptcli.api.training import training_settings as training_settings
from promptcli.data.vectors import read_vectors as read_vectors
from promptcli.data.vectors.part_folder import check_parts as check_parts
from promptcli.data.vectors.part_folder import merge_parts as merge_parts
from promptcli.data.vectors.part_folder import sample_parts as sample_parts
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
