"""The command ``reproduce``."""

from promptcli.extending import Command

REPRODUCE = Command(
    "reproduce",
    "promptcli.plugins.papers.command:reproduce",
    "Measure the papers' tables and figures again.",
)
