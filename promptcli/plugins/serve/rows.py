"""The commands ``serve`` and ``mcp``."""

from promptcli.cli.command_line import Command

SERVE = Command(
    "serve",
    "promptcli.plugins.serve.command:serve",
    "Serve embeddings and search over HTTP, with a page.",
)
MCP = Command(
    "mcp",
    "promptcli.plugins.serve.command:mcp",
    "Serve search in indexes to agents (Model Context Protocol).",
)
