"""The command ``choose``."""

from promptcli.extending import Command

CHOOSE = Command(
    "choose",
    "promptcli.plugins.domain.command:choose",
    "Find out which model and ranking suit your own texts, without labels.",
    example="docs",
)
