"""The command ``pretrain``."""

from promptcli.cli.command_line import Command

PRETRAIN = Command(
    "pretrain",
    "promptcli.plugins.pretrain.command:pretrain",
    "Pre-train a small BERT on plain text, or continue a masked language model.",
)
