"""The names of ``promptcli.extending`` and their modules, by what they are for: read by type
checkers, and by ``extending.py``, which loads them on first use.
"""

# a pooling
from promptcli.encoder.pooling.content import ContentTokens as ContentTokens
from promptcli.encoder.pooling.weights import Weights as Weights

# a transform
from promptcli.encoder.transforms.transform import Transform as Transform

# a prompt
from promptcli.encoder.prompts.prompt import Prompt as Prompt
from promptcli.encoder.template import Template as Template

# a training method
from promptcli.training.methods.method import Method as Method
from promptcli.training.methods.method import Variant as Variant
from promptcli.training.methods.training_settings import ContrastiveSettings as ContrastiveSettings
from promptcli.training.methods.training_settings import TrainingSettings as TrainingSettings
from promptcli.settings import setting as setting

# an objective
from promptcli.training.objectives.contrastive import InfoNCE as InfoNCE
from promptcli.training.objectives.objective import Objective as Objective

# a task
from promptcli.data.task_table import TaskRow as TaskRow
from promptcli.data.task_table import read_graded_pairs as read_graded_pairs

# an input format
from promptcli.data.dialect import Dialect as Dialect
from promptcli.data.input_formats import BinaryFormat as BinaryFormat
from promptcli.data.input_formats import LineFormat as LineFormat

# a vector file format
from promptcli.data.vectors.formats import VectorFormat as VectorFormat

# a model family
from promptcli.backbones.families import Family as Family

# a command
from promptcli.cli.command_line import Command as Command
from promptcli.cli.command_line import group as group
from promptcli.cli.console import result as result
from promptcli.cli.console import result_json as result_json
from promptcli.cli.console import result_table as result_table
from promptcli.cli.options import Json as Json
from promptcli.cli import options as options
from promptcli.jobs import Job as Job
from promptcli.jobs import argument as argument
from promptcli.jobs import function_of as function_of
from promptcli.jobs import option as option

# tables and pictures that a command shows
from promptcli.cli.grids import Grid as Grid
from promptcli.cli import pictures as pictures
from promptcli.cli import result_files as result_files
from promptcli.cli.tables import table_names as table_names

# an engine, which makes the parts of a folder
from promptcli.embedding.engines import Engine as Engine
from promptcli.embedding.parts import PartJob as PartJob
from promptcli.storage import files as files

# a library's data sets
from promptcli.embedding.datasets import DataSets as DataSets
from promptcli.embedding.datasets import VectorColumn as VectorColumn

# a backend, which computes an encoder
from promptcli.models.backend_table import Backend as Backend
from promptcli.encoder.encoder import PromptEncoder as PromptEncoder
from promptcli.encoder.encoder import build_encoder as build_encoder
from promptcli.encoder import streams as streams

# a format of files that are backbones
from promptcli.backbones import checking as checking
from promptcli.backbones.word_tables import WordTable as WordTable
from promptcli.backbones.word_tables import WordTokenizer as WordTokenizer
from promptcli.data.input_files import decoded_lines as decoded_lines
from promptcli.storage import tensors as tensors

# a tracker, which a training reports to
from promptcli.training import watching as watching
from promptcli.training.watching import Watcher as Watcher

# a target of export
from promptcli.models.exporting import ExportTarget as ExportTarget
from promptcli.models.entries import Entry as Entry
from promptcli.models.sentence_transformers_format import Exported as Exported
from promptcli.models.sentence_transformers_format import InexactError as InexactError
from promptcli.models import parity as parity
from promptcli.models.sentence_transformers_format import write_tokenizer as write_tokenizer
from promptcli.models.sentence_transformers_format import static_table as static_table

# other processes
from promptcli import children as children

# errors and notes
from promptcli import errors as errors
from promptcli import notes as notes
from promptcli.notes import keyword as keyword
from promptcli.notes import note as note

# models and encoders
from promptcli.encoder import batching as batching
from promptcli.encoder.encoded import Encoded as Encoded
from promptcli.encoder.encoder import TorchEncoder as TorchEncoder
from promptcli.encoder.encoder import make_encoder as make_encoder
from promptcli.encoder.encoder import tuned_weights as tuned_weights
from promptcli.encoder.encoding import encode_together as encode_together
from promptcli.encoder.pooling.ditto import KNOWN_HEADS as KNOWN_HEADS
from promptcli.encoder.prefetching import prefetch as prefetch
from promptcli.grammar import parse_ditto as parse_ditto
from promptcli.models.loading import Model as Model
from promptcli.models import language_choice as language_choice
from promptcli.models import loading as loading
from promptcli.recipe import Choice as Choice
from promptcli.recipe import is_named as is_named

# backbones and vocabularies
from promptcli.backbones.backbone import Backbone as Backbone
from promptcli.backbones import devices as devices
from promptcli.backbones.language_models import ContinuedMaskedLM as ContinuedMaskedLM
from promptcli.backbones.language_models import MaskedCheckpoint as MaskedCheckpoint
from promptcli.backbones.language_models import MaskedLM as MaskedLM
from promptcli.backbones import locating as locating
from promptcli.backbones.names import words_only as words_only
from promptcli.backbones.provenance import Provenance as Provenance
from promptcli.backbones.published_backbones import published_name as published_name
from promptcli.backbones import states as states
from promptcli.backbones.tokenizer import PieceTokenizer as PieceTokenizer

# indexes
from promptcli.index.factory import set_search_threads as set_search_threads
from promptcli.index.sentence_index import open_index as open_index
from promptcli.index.vector_index import VectorIndex as VectorIndex

# files of texts, as searches read them
from promptcli.data.column_choice import ColumnChoice as ColumnChoice
from promptcli.data.tasks import RetrievalTask as RetrievalTask
from promptcli.index import file_rows as file_rows
from promptcli.index.found_files import find_files as find_files
from promptcli.index.found_files import list_of_names as list_of_names

# data
from promptcli.data.column_forms import scale_value as scale_value
from promptcli.data import given as given
from promptcli.data.layouts import LAYOUTS as LAYOUTS
from promptcli.data.preparation import Preparation as Preparation
from promptcli.data import senteval as senteval
from promptcli.data import sources as sources
from promptcli.data.tasks import STSTask as STSTask
from promptcli.data.tasks import OtherTask as OtherTask
from promptcli.data.tasks import load_tasks as load_tasks
from promptcli.data.vectors.precision import unit as unit

# training and evaluation
from promptcli.evaluation import candidates as candidates
from promptcli.evaluation import evaluator as evaluator
from promptcli.evaluation.scores import Label as Label
from promptcli.evaluation import statistics as statistics
from promptcli.searching import tfidf_correlation as tfidf_correlation
from promptcli.training.batches import steps_of as steps_of
from promptcli.training.fits import fit_recipe as fit_recipe
from promptcli.training.run import train_encoder as train_encoder
from promptcli.training.methods import find_method as find_method
from promptcli.training.objectives import find_objective as find_objective
from promptcli.training import presets as presets

# files, runs and settings
from promptcli.settings import BARE as BARE
from promptcli.settings import check_bounds as check_bounds
from promptcli.settings import home_folder as home_folder
from promptcli.settings import typed_value as typed_value
from promptcli.storage.cache import Cache as Cache
from promptcli.storage.cache import library_versions as library_versions
from promptcli.storage.folders import write_folder as write_folder
from promptcli.storage import runs as runs
from promptcli.threads import COMPUTING as COMPUTING

__all__: list[str]
