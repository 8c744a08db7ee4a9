"""The command ``judge``."""

from promptcli.cli.command_line import Command

JUDGE = Command(
    "judge",
    "promptcli.plugins.judge.command:judge",
    "Judge hits of several models and ways: which answers your questions better?",
)
