"""``promptcli serve``: models and indexes over HTTP, with a page to look at them."""

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptcli.cli import opening
from promptcli.cli.commands.index_search import encoder_of, set_threads
from promptcli.cli.console import note, say
from promptcli.cli.options import BackendName, FieldOptions, Runtime, options_of
from promptcli.errors import NotFoundError, UsageError, did_you_mean
from promptcli.serving.settings import ServeSettings
from promptcli.storage.files import real_path

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder
    from promptcli.serving.served import ServedIndex

#: Holds the key that requests must send.
KEY = "PROMPTCLI_API_KEY"


@options_of(ServeSettings, defaults=True)
class ServeOptions(FieldOptions):
    """Where a server listens, and its limits."""


def serve(
    settings: ServeOptions,
    runtime: Runtime,
    model: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Models of the registry, aliases, named recipes, recipe files, folders or hub ids; requests name them"
            " as they are written here. Default: mini.",
        ),
    ] = None,
    index: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Index to search; repeatable. Its name is its folder's.")
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale every embedding to length 1.")] = False,
    backend: BackendName = "torch",
) -> None:
    """Serve embeddings as OpenAI's interface has them, search and similarity over HTTP, and a page at /.

    Where the environment variable PROMPTCLI_API_KEY is set, requests must send it as a bearer token. SIGTERM and
    Ctrl-C finish what was accepted; a second one ends at once.
    """
    needed = ("starlette", "uvicorn", "prometheus_client")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise UsageError(f"serve needs {' and '.join(missing)}, which is not installed: pip install 'promptcli[serve]'")
    names = [real_path(folder).name for folder in index or []]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two indexes are called {twice[0]!r}; rename the folder of one")
    from promptcli.serving.running import bind
    from promptcli.serving.running import serve as run

    key = os.environ.get(KEY) or None
    if key is not None and key != "".join(key.split()):
        raise UsageError(f"{KEY} holds blanks or line ends, which no request can send; give a key without them")
    given = ServeSettings(**settings.changes())
    with bind(given) as listening:  # before the models are loaded
        opening.configure_libraries(runtime)
        from promptcli.serving.served import Served
        from promptcli.serving.service import Service

        models = _models(model or ["mini"], runtime, backend)
        indexes = _indexes(index or [], models, runtime)
        if key is None and given.host not in ("127.0.0.1", "localhost", "::1"):
            note(f"everybody who reaches {given.host} can use it; to ask for a key: {KEY}=...")
        served = Served(models, indexes, normalize)
        # FAISS keeps the number of threads for each thread that calls it
        service = Service(served, given, key=key, log=say, prepare=lambda: set_threads(runtime))
        served_names = ", ".join([*models, *(f"index {name}" for name in indexes)])
        second = run(service, listening, ready=lambda url: note(f"serving {served_names} at {url}"))
    if second is not None:
        say("ended at once; requests in work were dropped")
        raise typer.Exit(128 + second)
    note(f"stopped; {service.metrics.answered:,} requests were answered")


def _models(names: list[str], runtime: Runtime, backend: str) -> "dict[str, Encoder]":
    """Return the encoders by the names given; those of one backbone share it."""
    from promptcli.registry.resolving import named

    registry = opening.open_registry()
    entries = [named(registry, name) for name in dict.fromkeys(names)]
    try:
        encoders = opening.open_entries(entries, runtime, default_dtype="auto", backend=backend)
    except NotFoundError as error:
        near = "".join(did_you_mean(name, registry.names()) for name in names if name not in registry.names())
        raise NotFoundError(f"{error}{near}") from None
    return dict(zip(dict.fromkeys(names), encoders, strict=True))


def _indexes(folders: list[Path], models: "dict[str, Encoder]", runtime: Runtime) -> "dict[str, ServedIndex]":
    """Return the indexes by their folders' names; the encoder is a served model's where that is the same."""
    from promptcli.index.stored import load
    from promptcli.serving.served import ServedIndex

    encoders = {encoder.fingerprint: encoder for encoder in models.values()}
    served: dict[str, ServedIndex] = {}
    for folder in folders:
        stored = load(folder)
        encoder = encoders.get(stored.origin.fingerprint) or encoder_of(stored.origin, runtime)
        encoders[encoder.fingerprint] = encoder
        name = real_path(folder).name
        served[name] = ServedIndex(name, stored.index, encoder)
    return served
