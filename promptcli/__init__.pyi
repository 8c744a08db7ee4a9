"""The public names and their modules, for type checkers and for ``__init__.py``."""

from .data.vectors.formats import read_vectors as read_vectors
from .data.vectors.precision import quantize as quantize
from .embedding import embed as embed
from .embedding import embed_dataset as embed_dataset
from .embedding import embed_parts as embed_parts
from .encoder.sentence_encoder import Encoder as Encoder
from .errors import NotFoundError as NotFoundError
from .errors import PromptcliError as PromptcliError
from .errors import UsageError as UsageError
from .evaluation import evaluate as evaluate
from .evaluation import task_sentences as task_sentences
from .evaluation.evaluator import compare as compare
from .models.cosines import similarity as similarity
from .models.exporting import export as export
from .models.hub import pull as pull
from .models.hub import push as push
from .models.importing import import_model as import_model
from .models.loading import list_models as list_models
from .models.loading import load as load
from .models.loading import register as register
from .models.saving import save as save
from .plugins.analyze import analyze as analyze
from .plugins.domain.adapting import adapt as adapt
from .plugins.domain.choosing import choose as choose
from .plugins.papers import reproduce as reproduce
from .plugins.papers.seeds import compare_over_seeds as compare_over_seeds
from .plugins.pretrain.pretraining import Pretrained as Pretrained
from .plugins.pretrain.pretraining import pretrain as pretrain
from .plugins.serve.serving import serve as serve
from .plugins.tune.tuning import tune as tune
from .recipe import RECIPES as RECIPES
from .recipe import Recipe as Recipe
from .retrieval.file_search import search as search
from .retrieval.pairs import find_dups as find_dups
from .retrieval.pairs import find_leaks as find_leaks
from .retrieval.sentence_index import SentenceIndex as SentenceIndex
from .select import check_template as check_template
from .select import templates as templates
from .select.head_search import search_heads as search_heads
from .select.layer_search import search_layers as search_layers
from .select.template_search import search_templates as search_templates
from .training import fit as fit
from .training import train as train
from .training import training_settings as training_settings
from .training.run import Trained as Trained

__version__: str
__all__: list[str]
