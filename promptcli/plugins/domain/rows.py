"""The commands ``choose`` and ``adapt``."""

from promptcli.cli.command_line import Command

CHOOSE = Command(
    "choose",
    "promptcli.plugins.domain.command:choose",
    "Find out which model and ranking suit your own texts, without labels.",
)
ADAPT = Command(
    "adapt",
    "promptcli.plugins.domain.command:adapt",
    "Train a model on your own texts, without labels, and keep it if it finds more in them.",
)
