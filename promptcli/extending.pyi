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

# a vector file format
from promptcli.data.vectors.formats import VectorFormat as VectorFormat

# a model family
from promptcli.backbones.families import Family as Family

# a command
from promptcli.cli.command_line import Command as Command
from promptcli.cli.command_line import group as group
from promptcli.cli.console import result as result
from promptcli.cli.console import result_json as result_json
from promptcli.cli.options import Json as Json
from promptcli.cli.options import RUNTIME as RUNTIME
from promptcli.cli.options import Section as Section
from promptcli.cli.options import choice_of as choice_of
from promptcli.cli.options import set_help as set_help
from promptcli.cli.options import words_of as words_of
from promptcli.jobs import Job as Job
from promptcli.jobs import REQUIRED as REQUIRED
from promptcli.jobs import argument as argument
from promptcli.jobs import function_of as function_of
from promptcli.jobs import option as option

# an engine, which makes the parts of a folder
from promptcli.embedding.engines import Engine as Engine
from promptcli.embedding.parts import PartJob as PartJob
from promptcli.storage.files import remove_leftovers as remove_leftovers

# a library's data sets
from promptcli.embedding.datasets import DataSets as DataSets
from promptcli.embedding.datasets import VectorColumn as VectorColumn

# other processes
from promptcli.children import environment as environment
from promptcli.children import python_command as python_command

# errors and notes
from promptcli.errors import PromptcliError as PromptcliError
from promptcli.errors import OutOfMemoryError as OutOfMemoryError
from promptcli.errors import UsageError as UsageError
from promptcli.errors import did_you_mean as did_you_mean
from promptcli.errors import if_stopped as if_stopped
from promptcli.errors import is_out_of_memory as is_out_of_memory
from promptcli.errors import one_line as one_line
from promptcli.errors import require as require
from promptcli.errors import short_line as short_line
from promptcli.errors import unknown as unknown
from promptcli.notes import Advance as Advance
from promptcli.notes import describe as describe
from promptcli.notes import keyword as keyword
from promptcli.notes import keywords_typed as keywords_typed
from promptcli.notes import note as note
from promptcli.notes import stage as stage
from promptcli.notes import warn as warn
from promptcli.notes import without_network as without_network

# models and encoders
from promptcli.encoder.batching import LateFigures as LateFigures
from promptcli.encoder.batching import to_device as to_device
from promptcli.encoder.encoded import Encoded as Encoded
from promptcli.encoder.prefetching import prefetch as prefetch
from promptcli.models.loading import Model as Model
from promptcli.models.loading import entry_of as entry_of
from promptcli.models.loading import open_encoders as open_encoders
from promptcli.recipe import Choice as Choice
from promptcli.recipe import ROLES as ROLES

# backbones and vocabularies
from promptcli.backbones.checking import read_config as read_config
from promptcli.backbones.devices import choose_device as choose_device
from promptcli.backbones.devices import choose_dtype as choose_dtype
from promptcli.backbones.language_models import MaskedLM as MaskedLM
from promptcli.backbones.locating import locate as locate
from promptcli.backbones.locating import weight_files as weight_files
from promptcli.backbones.vocabulary import CLS as CLS
from promptcli.backbones.vocabulary import MASK as MASK
from promptcli.backbones.vocabulary import PAD as PAD
from promptcli.backbones.vocabulary import SEP as SEP
from promptcli.backbones.vocabulary import SPECIALS as SPECIALS
from promptcli.backbones.vocabulary import UNK as UNK
from promptcli.backbones.vocabulary import Vocabulary as Vocabulary
from promptcli.backbones.vocabulary import save_own_tokenizer as save_own_tokenizer
from promptcli.backbones.vocabulary import token_dtype as token_dtype
from promptcli.backbones.vocabulary import train_vocabulary as train_vocabulary

# indexes
from promptcli.index.array_rows import RowMask as RowMask
from promptcli.index.basics import reaches as reaches
from promptcli.index.column_types import cell_columns as cell_columns
from promptcli.index.factory import set_search_threads as set_search_threads
from promptcli.index.inputs import is_named as is_named
from promptcli.index.sentence_index import open_index as open_index
from promptcli.index.stored import Stamp as Stamp
from promptcli.index.vector_index import VectorIndex as VectorIndex

# data
from promptcli.data.column_choice import ColumnChoice as ColumnChoice
from promptcli.data.given import check_texts as check_texts
from promptcli.data.rows import open_rows as open_rows
from promptcli.data.vectors.formats import Floats as Floats
from promptcli.data.vectors.precision import unit as unit

# training and evaluation
from promptcli.evaluation.evaluator import keep_random_states as keep_random_states
from promptcli.training.optimizers import CLIP as CLIP

# files, runs and settings
from promptcli.named_templates import templates_folder as templates_folder
from promptcli.settings import check_bounds as check_bounds
from promptcli.storage.files import atomic_path as atomic_path
from promptcli.storage.files import real_path as real_path
from promptcli.storage.files import sha256 as sha256
from promptcli.storage.files import write_text as write_text
from promptcli.storage.runs import Position as Position
from promptcli.storage.runs import RunFolder as RunFolder
from promptcli.storage.runs import load_state as load_state
from promptcli.storage.runs import save_state as save_state
from promptcli.storage.runs import truncate_log as truncate_log
from promptcli.storage.tensors import load_tensors as load_tensors
from promptcli.storage.typed_documents import shorten as shorten
from promptcli.threads import COMPUTING as COMPUTING

__all__: list[str]
