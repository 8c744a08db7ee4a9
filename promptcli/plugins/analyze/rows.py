"""The command ``analyze``."""

from promptcli.cli.command_line import Command

ANALYZE = Command(
    "analyze",
    "promptcli.plugins.analyze.command:analyze",
    "Look inside models: anisotropy, attention, tokens, maps.",
)
