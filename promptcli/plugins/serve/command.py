"""``promptcli serve`` and ``mcp``: models and indexes over HTTP with a page, and to agents."""

import os
from typing import Annotated

import typer

from promptcli.cli import options
from promptcli.plugins.serve import serving
from promptcli.plugins.serve.settings import ServeSettings
from promptcli.settings import SEARCH_MODEL

#: Holds the key that requests must send.
KEY = "PROMPTCLI_API_KEY"
Indexes = Annotated[
    list[str] | None,
    typer.Option(
        "--index", metavar="DIR", help="Index to search; repeatable. It is named after its folder."
    ),
]


@options.takes_options("settings", ServeSettings)
def serve(
    settings: ServeSettings,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Names of models and recipes, recipe files, folders or hub ids; requests use these"
            " names. Default: mini-multi.",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Another model to serve; repeatable."),
    ] = None,
    indexes: Indexes = None,
    normalize: Annotated[
        bool,
        typer.Option(
            help="Scale every embedding to length 1, as OpenAI's, so that a dot product is the"
            " cosine."
        ),
    ] = True,
) -> None:
    """Serve embeddings through an API compatible with OpenAI's, search and similarity, and a page
    at /.

    If the environment variable PROMPTCLI_API_KEY is set, requests must send it as a bearer token.
    After SIGTERM or Ctrl-C accepted requests are answered, for at most 50 seconds; a second signal
    ends at once.
    """
    names = [*(models or ()), *(model or ())] or [SEARCH_MODEL]
    runtime = options.RUNTIME.get()
    serving.serve(
        list(map(options.choice_of, names)),
        indexes or (),
        settings=settings,
        normalize=normalize,
        key=os.environ.get(KEY) or None,
        device=runtime.device,
        threads=runtime.threads,
    )


def mcp(
    indexes: Indexes = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="The encoder of `similar`. Default: that of the first index, else mini-multi.",
        ),
    ] = None,
) -> None:
    """Serve indexes to agents over stdin and stdout, by the Model Context Protocol.

    The tools are `search` (an index), `similar` (two sentences) and `indexes`. They only read. The
    server ends when its stdin ends.
    """
    serving.serve_agents(
        indexes or (),
        model=None if model is None else options.choice_of(model),
        device=options.RUNTIME.get().device,
    )
