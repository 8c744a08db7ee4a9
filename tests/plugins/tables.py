"""Every table to which installed packages may add rows."""

import importlib

#: Name of a table -> its place.
TABLES = {
    "poolings": "promptcli.encoder.pooling:WEIGHTS",
    "transforms": "promptcli.encoder.transforms:TRANSFORMS",
    "prompts": "promptcli.encoder.prompts:PROMPTS",
    "methods": "promptcli.training.methods:METHODS",
    "objectives": "promptcli.training.objectives:OBJECTIVES",
    "tasks": "promptcli.data.task_table:TASKS",
    "task_groups": "promptcli.data.task_table:GROUPS",
    "task_families": "promptcli.data.task_table:FAMILIES",
    "formats": "promptcli.data.vectors.formats:VECTOR_FORMATS",
    "input_formats": "promptcli.data.tables:INPUT_FORMATS",
    "families": "promptcli.backbones.families:FAMILIES",
    "commands": "promptcli.cli.command_line:COMMANDS",
    "engines": "promptcli.embedding.parts:ENGINES",
    "datasets": "promptcli.embedding.datasets:DATA_SETS",
    "model_files": "promptcli.backbones.model_folder:MODEL_FILES",
    "word_files": "promptcli.backbones.model_folder:WORD_FILES",
    "trackers": "promptcli.training.watching:TRACKERS",
    "backends": "promptcli.models.loading:BACKENDS",
    "exports": "promptcli.models.exporting:TARGETS",
    "explainers": "promptcli.retrieval.ranking:EXPLAINERS",
}


def table_named(name):
    module, _, attribute = TABLES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
