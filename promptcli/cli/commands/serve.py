"""``promptcli serve`` and ``mcp``: models and indexes over HTTP with a page, and to agents."""

import os
from functools import partial
from typing import Annotated

import typer

from promptcli import serving
from promptcli.cli.options import RUNTIME, choice_of
from promptcli.cli.signatures import Flag, command_of

#: Holds the key that requests must send.
KEY = "PROMPTCLI_API_KEY"


@command_of(
    serving.serve,
    flags={
        "models": Flag("[MODEL]...", type=list[str], read=lambda words: words or []),
        "indexes": Flag("--index", metavar="DIR"),
        "key": None,
    },
)
def serve(
    serve: "partial[None]",
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="The same as an argument; repeatable.")
    ] = None,
) -> None:
    names = [*serve.keywords["models"], *(model or ())] or ["mini"]
    serve(
        models=list(map(choice_of, names)),
        key=os.environ.get(KEY) or None,
        threads=RUNTIME.get().threads,
    )


@command_of(
    serving.serve_agents, flags={"indexes": Flag("--index", metavar="DIR"), "model": "--model -m"}
)
def mcp(serve_agents: "partial[None]") -> None:
    serve_agents()
