"""The command ``pretrain``."""

from promptcli.extending import Command

PRETRAIN = Command(
    "pretrain",
    "promptcli.plugins.pretrain.command:pretrain",
    "Pre-train a small BERT on plain text, or go on with a masked language model.",
)
