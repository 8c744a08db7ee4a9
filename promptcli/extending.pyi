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
from promptcli.cli.console import result_styled as result_styled
from promptcli.cli.console import result_table as result_table
from promptcli.cli.console import show as show
from promptcli.cli.console import terminal_width as terminal_width
from promptcli.cli.options import Json as Json
from promptcli.cli import options as options
from promptcli.jobs import Job as Job
from promptcli.jobs import REQUIRED as REQUIRED
from promptcli.jobs import argument as argument
from promptcli.jobs import function_of as function_of
from promptcli.jobs import option as option

# tables and pictures that a command shows
from promptcli.cli.grids import Grid as Grid
from promptcli.cli.grids import best_cells as best_cells
from promptcli.cli import pictures as pictures
from promptcli.cli.result_files import FormatOptions as FormatOptions
from promptcli.cli.result_files import Part as Part
from promptcli.cli.result_files import Report as Report
from promptcli.cli.result_files import print_report as print_report
from promptcli.cli.tables import table_names as table_names

# an engine, which makes the parts of a folder
from promptcli.embedding.engines import Engine as Engine
from promptcli.embedding.parts import PartJob as PartJob
from promptcli.storage.files import remove_leftovers as remove_leftovers

# a library's data sets
from promptcli.embedding.datasets import DataSets as DataSets
from promptcli.embedding.datasets import VectorColumn as VectorColumn

# a backend, which computes an encoder
from promptcli.models.backend_table import Backend as Backend
from promptcli.encoder.encoder import PromptEncoder as PromptEncoder
from promptcli.encoder.encoder import build_encoder as build_encoder
from promptcli.encoder.pooling.tfidf import WordTfIdf as WordTfIdf
from promptcli.encoder.prompts.contrastive import Contrastive as Contrastive
from promptcli.encoder.prompts.kv_embedding import KVEmbedding as KVEmbedding
from promptcli.encoder.streams import Graph as Graph
from promptcli.encoder.streams import stream_count as stream_count

# a format of files that are backbones
from promptcli.backbones import checking as checking
from promptcli.backbones.word_tables import WordTable as WordTable
from promptcli.backbones.word_tables import WordTokenizer as WordTokenizer
from promptcli.data.input_files import open_file as open_file
from promptcli.data.input_files import open_text as open_text
from promptcli.storage.tensors import disk_errors as disk_errors

# a tracker, which a training reports to
from promptcli.training.watching import DevScore as DevScore
from promptcli.training.watching import WatchedRun as WatchedRun
from promptcli.training.watching import Watcher as Watcher

# a target of export
from promptcli.models.exporting import ExportTarget as ExportTarget
from promptcli.models.entries import Entry as Entry
from promptcli.models.sentence_transformers_format import Exported as Exported
from promptcli.models.sentence_transformers_format import InexactError as InexactError
from promptcli.models.sentence_transformers_format import PARITY_PROBES as PARITY_PROBES
from promptcli.models.sentence_transformers_format import PARITY_TOO_LONG as PARITY_TOO_LONG
from promptcli.models.sentence_transformers_format import TYPED_SPECIAL as TYPED_SPECIAL
from promptcli.models.sentence_transformers_format import changes_ends as changes_ends
from promptcli.models.sentence_transformers_format import check_parity as check_parity
from promptcli.models.sentence_transformers_format import row_cosines as row_cosines
from promptcli.models.sentence_transformers_format import static_table as static_table
from promptcli.models.sentence_transformers_format import uncut_probes as uncut_probes
from promptcli.models.sentence_transformers_format import with_template as with_template
from promptcli.backbones.backbone_files import file_inputs as file_inputs
from promptcli.backbones.backbone_files import save_tokenizer as save_tokenizer

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
from promptcli.encoder.pooling import build_pooling as build_pooling
from promptcli.encoder.pooling.ditto import KNOWN_HEADS as KNOWN_HEADS
from promptcli.encoder.pooling.tfidf import fit_idf as fit_idf
from promptcli.encoder.prefetching import prefetch as prefetch
from promptcli.grammar import parse_ditto as parse_ditto
from promptcli.grammar import parse_pooling as parse_pooling
from promptcli.grammar import split_name as split_name
from promptcli.models.loading import Model as Model
from promptcli.models.loading import Sentences as Sentences
from promptcli.models.loading import as_list as as_list
from promptcli.models.loading import entry_of as entry_of
from promptcli.models.loading import open_encoders as open_encoders
from promptcli.models.loading import open_registry as open_registry
from promptcli.recipe import Choice as Choice
from promptcli.recipe import ROLES as ROLES
from promptcli.recipe import last_part as last_part
from promptcli.values import with_fields as with_fields

# backbones and vocabularies
from promptcli.backbones.backbone import Backbone as Backbone
from promptcli.backbones.by_name import load_backbone as load_backbone
from promptcli.backbones import devices as devices
from promptcli.backbones.head import MLMHead as MLMHead
from promptcli.backbones.language_models import MaskedLM as MaskedLM
from promptcli.backbones import locating as locating
from promptcli.backbones.names import words_only as words_only
from promptcli.backbones.provenance import Provenance as Provenance
from promptcli.backbones.published_backbones import Shape as Shape
from promptcli.backbones.published_backbones import published_name as published_name
from promptcli.backbones.states import Batch as Batch
from promptcli.backbones.states import Needs as Needs
from promptcli.backbones.tokenizer import PieceTokenizer as PieceTokenizer

# indexes
from promptcli.index.array_rows import RowMask as RowMask
from promptcli.index.basics import reaches as reaches
from promptcli.index.basics import way_record as way_record
from promptcli.index.column_types import cell_columns as cell_columns
from promptcli.index.factory import set_search_threads as set_search_threads
from promptcli.index.inputs import is_named as is_named
from promptcli.index.sentence_index import open_index as open_index
from promptcli.index.stored import Stamp as Stamp
from promptcli.index.vector_index import VectorIndex as VectorIndex

# data
from promptcli.data.demo import SENTENCES_FILE as SENTENCES_FILE
from promptcli.data.column_choice import ColumnChoice as ColumnChoice
from promptcli.data.column_forms import scale_value as scale_value
from promptcli.data.given import are_sentences as are_sentences
from promptcli.data.given import check_encodable as check_encodable
from promptcli.data.given import check_texts as check_texts
from promptcli.data.layouts import LAYOUTS as LAYOUTS
from promptcli.data.preparation import Preparation as Preparation
from promptcli.data.rows import open_rows as open_rows
from promptcli.data.senteval import senteval_folder as senteval_folder
from promptcli.data.senteval import tasks_from as tasks_from
from promptcli.data.sources import TrainingExamples as TrainingExamples
from promptcli.data.sources import fitting_sentences as fitting_sentences
from promptcli.data.sources import sentences_with_column as sentences_with_column
from promptcli.data.sources import training_examples as training_examples
from promptcli.data.task_table import TEST_TASKS as TEST_TASKS
from promptcli.data.task_table import TRANSFER_TASKS as TRANSFER_TASKS
from promptcli.data.tasks import STSTask as STSTask
from promptcli.data.tasks import TransferTask as TransferTask
from promptcli.data.tasks import fitting_task as fitting_task
from promptcli.data.tasks import load_tasks as load_tasks
from promptcli.data.tasks import load_transfer as load_transfer
from promptcli.data.tasks import task_names as task_names
from promptcli.data.vectors.formats import Floats as Floats
from promptcli.data.vectors.precision import unit as unit

# training and evaluation
from promptcli.evaluation.candidates import candidates_of as candidates_of
from promptcli.evaluation.candidates import open_candidates as open_candidates
from promptcli.evaluation.classifier import FULL as FULL
from promptcli.evaluation import evaluator as evaluator
from promptcli.evaluation.scores import Label as Label
from promptcli.evaluation import statistics as statistics
from promptcli.searching import tfidf_correlation as tfidf_correlation
from promptcli.training.batches import steps_of as steps_of
from promptcli.training.fits import fit_recipe as fit_recipe
from promptcli.training.methods import find_method as find_method
from promptcli.training.objectives import find_objective as find_objective
from promptcli.training.optimizers import CLIP as CLIP
from promptcli.training import presets as presets
from promptcli.training.processes import start_processes as start_processes
from promptcli.training.run import TrainingRun as TrainingRun

# files, runs and settings
from promptcli.named_templates import templates_folder as templates_folder
from promptcli.settings import BARE as BARE
from promptcli.settings import check_bounds as check_bounds
from promptcli.settings import home_folder as home_folder
from promptcli.settings import typed_value as typed_value
from promptcli.storage.cache import Cache as Cache
from promptcli.storage.cache import library_versions as library_versions
from promptcli.storage.folders import write_folder as write_folder
from promptcli.storage.files import atomic_path as atomic_path
from promptcli.storage.files import real_path as real_path
from promptcli.storage.files import sha256 as sha256
from promptcli.storage.files import write_text as write_text
from promptcli.storage import runs as runs
from promptcli.storage.tensors import load_tensors as load_tensors
from promptcli.storage.typed_documents import shorten as shorten
from promptcli.threads import COMPUTING as COMPUTING

__all__: list[str]
