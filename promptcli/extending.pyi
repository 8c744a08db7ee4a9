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
from promptcli.cli.options import Json as Json
from promptcli.jobs import Job as Job
from promptcli.jobs import argument as argument
from promptcli.jobs import function_of as function_of
from promptcli.jobs import option as option

# a message
from promptcli.errors import UsageError as UsageError
from promptcli.notes import keyword as keyword
from promptcli.notes import note as note

__all__: list[str]
