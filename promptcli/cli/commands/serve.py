"""``promptcli serve``: models and indexes over HTTP, with a page to look at them."""

import os
from pathlib import Path
from typing import Annotated

import typer

from promptcli.cli.console import say
from promptcli.cli.options import FieldOptions, Runtime, options_of
from promptcli.errors import UsageError
from promptcli.serving.settings import ServeSettings

#: Holds the key that requests must send.
KEY = "PROMPTCLI_API_KEY"


@options_of(ServeSettings, defaults=True)
class ServeOptions(FieldOptions):
    """Where a server listens, and its limits."""


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Names of models and recipes, recipe files, folders or hub ids; requests name them as they are written"
            " here. Default: mini.",
        ),
    ] = None,
    index: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Index to search; repeatable. Its name is its folder's.")
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every embedding to length 1.")] = False,
    *,
    settings: ServeOptions,
    runtime: Runtime,
) -> None:
    """Serve embeddings through an API compatible with OpenAI's, search and similarity, and a page at /.

    Where the environment variable PROMPTCLI_API_KEY is set, requests must send it as a bearer token. SIGTERM and
    Ctrl-C finish what was accepted; a second one ends at once.
    """
    from promptcli.serving import serve as serving

    key = os.environ.get(KEY) or None
    if key is not None and key != "".join(key.split()):
        raise UsageError(f"{KEY} holds blanks or line ends, which no request can send; give a key without them")
    second = serving.serve(
        models or ["mini"],
        index or [],
        settings=ServeSettings(**settings.changes()),
        normalize=normalize,
        key=key,
        log=say,
        backend=runtime.backend,
        device=runtime.device,
        dtype=runtime.dtype,
        threads=runtime.threads,
    )
    if second is not None:
        say("ended at once; requests in work were dropped")
        raise typer.Exit(128 + second)
