"""The command ``judge``."""

from promptcli.cli.command_line import Command

JUDGE = Command(
    "judge",
    "promptcli.plugins.judge.command:judge",
    "Judge the hits of several models: which answers your questions better?",
)
