"""The command ``reproduce``."""

from promptcli.cli.command_line import Command

REPRODUCE = Command(
    "reproduce",
    "promptcli.plugins.papers.command:reproduce",
    "Measure the papers' tables and figures again.",
)
