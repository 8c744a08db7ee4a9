"""The row of the command, which `promptcli --help` imports: a light module."""

from promptcli.cli.command_line import Command

LENGTHS = Command(
    "lengths", "promptcli_example.lengths:show", "Count the tokens of each line of a file."
)
