"""The public names and their modules: read by type checkers, and by ``__init__.py``, which
loads them on first use.
"""

from promptcli.data.vectors import read_vectors as read_vectors
from promptcli.data.vectors.precision import quantize as quantize
from promptcli.embedding import embed as embed
from promptcli.embedding import embed_dataset as embed_dataset
from promptcli.embedding import embed_parts as embed_parts
from promptcli.encoder.sentence_encoder import Encoder as Encoder
from promptcli.errors import NotFoundError as NotFoundError
from promptcli.errors import PromptcliError as PromptcliError
from promptcli.errors import UsageError as UsageError
from promptcli.evaluation import compare_over_seeds as compare_over_seeds
from promptcli.evaluation import evaluate as evaluate
from promptcli.evaluation import task_sentences as task_sentences
from promptcli.evaluation.demo_rarity import rarity as rarity
from promptcli.evaluation.evaluator import compare as compare
from promptcli.index import add_to_index as add_to_index
from promptcli.index import build_index as build_index
from promptcli.index import find_index_leaks as find_index_leaks
from promptcli.index import find_leaks as find_leaks
from promptcli.index import search_index as search_index
from promptcli.index.file_search import search as search
from promptcli.index.sentence_index import SentenceIndex as SentenceIndex
from promptcli.index.sync import sync_changes as sync_changes
from promptcli.index.sync import sync_index as sync_index
from promptcli.models.cosines import similarity as similarity
from promptcli.models.exporting import export as export
from promptcli.models.hub import pull as pull
from promptcli.models.hub import push as push
from promptcli.models.importing import import_model as import_model
from promptcli.models.loading import list_models as list_models
from promptcli.models.loading import load as load
from promptcli.models.loading import register as register
from promptcli.models.saving import save as save
from promptcli.plugins.analyze.job import analyze as analyze
from promptcli.plugins.domain.adapt_job import adapt as adapt
from promptcli.plugins.domain.job import choose as choose
from promptcli.plugins.papers.job import reproduce as reproduce
from promptcli.plugins.pretrain.job import Pretrained as Pretrained
from promptcli.plugins.pretrain.job import pretrain as pretrain
from promptcli.plugins.serve.job import serve as serve
from promptcli.plugins.tune.job import train_search as train_search
from promptcli.recipe import RECIPES as RECIPES
from promptcli.recipe import Recipe as Recipe
from promptcli.searching import check_template as check_template
from promptcli.searching import search_heads as search_heads
from promptcli.searching import search_layers as search_layers
from promptcli.searching import search_templates as search_templates
from promptcli.searching import templates as templates
from promptcli.training import fit as fit
from promptcli.training import train as train
from promptcli.training import train_sweep as train_sweep
from promptcli.training import training_settings as training_settings
from promptcli.training.ranges import Range as Range
from promptcli.training.trained import Trained as Trained

__version__: str
__all__: list[str]
