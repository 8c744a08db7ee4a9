"""Serves models and indexes: over HTTP until a signal, and to agents over stdin and stdout."""

import contextvars
import os
import select
import socket
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from promptcli import errors
from promptcli.errors import PromptcliError, UsageError
from promptcli.notes import note
from promptcli.plugins.serve.settings import ServeSettings
from promptcli.recipe import ModelChoice
from promptcli.settings import SEARCH_MODEL, list_of_names
from promptcli.storage import files
from promptcli.threads import Worker

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import Encoder
    from promptcli.models.loading import Model
    from promptcli.retrieval.sentence_index import SentenceIndex

#: A server for agents ends in this time after its client.
_END_TIMEOUT_S = 3.0


def serve(
    models: "Model | Sequence[Model]" = (),
    indexes: str | Path | Sequence[str | Path] = (),
    *,
    settings: ServeSettings | None = None,
    normalize: bool = True,
    key: str | None = None,
    device: str = "auto",
    threads: int | None = None,
) -> None:
    """Serve embeddings through an API compatible with OpenAI's, search and similarity, and a page
    at /.

    After SIGTERM or Ctrl-C accepted requests are answered, for at most 50 seconds; a second signal
    ends at once.

    Args:
        models: One or several names of models and recipes, recipe files, folders or hub ids;
            requests use these names. Default: mini-multi.
        indexes: One or several folders of indexes to search; an index is named after its folder.
        settings: Address and limits.
        normalize: Whether to scale every embedding to length 1, as OpenAI does, so that a dot
            product is the cosine.
        key: The bearer token that every request must send, except for the page and ``/health``.
        device: Device of index encoders that are not among the models.
        threads: CPU threads of searches.

    Raises:
        UsageError: The extra ``serve`` is not installed, a name is given twice, or the key cannot
            be sent.
        NotFoundError: A model or an index does not exist.
        PromptcliError: The address is not available, or a second signal ended the server.
    """
    errors.require_libraries("starlette", "uvicorn", "prometheus_client", extra="serve")
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError("the API key must be ASCII characters without spaces")
    folders = _folders_by_name(indexes)
    from promptcli.models.loading import as_list
    from promptcli.plugins.serve.app import make_app
    from promptcli.plugins.serve.connections import DRAIN_TIMEOUT_S, make_server
    from promptcli.plugins.serve.service import Service

    settings = settings or ServeSettings()
    with _listen(settings) as listening:  # before the models are loaded
        encoders = _open_models(as_list(models) or [ModelChoice(SEARCH_MODEL, device=device)])
        opened_indexes = _open_indexes(folders, encoders, device)
        if key is None and not settings.loopback_names():
            note(
                f"no API key: anyone who can reach {settings.host} can use it (set"
                " PROMPTCLI_API_KEY)"
            )
        service = Service(
            encoders, opened_indexes, settings, normalize=normalize, key=key, threads=threads
        )
        server = make_server(make_app(service), service)
        names = ", ".join([*encoders, *(f"index {name}" for name in opened_indexes)])
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        note(f"serving {names} at http://{host}:{listening.getsockname()[1]}")
        server.run([listening])
    if server.force_exit:
        raise PromptcliError("ended at once; requests in progress were dropped")
    if service.dropped:
        note(
            f"stopped; not answered within {DRAIN_TIMEOUT_S} seconds: {service.dropped:,} requests"
        )
    else:
        note("stopped")


def serve_agents(
    indexes: str | Path | Sequence[str | Path] = (),
    *,
    model: "Model | None" = None,
    device: str = "auto",
) -> None:
    """Serve indexes to agents over stdin and stdout, by the Model Context Protocol.

    The tools are ``search`` (an index), ``similar`` (two sentences) and ``indexes``. They only
    read. The server ends with its stdin.

    Args:
        indexes: One or several folders of indexes to search; an index is named after its folder.
        model: The encoder of ``similar``. Default: the first index's encoder, else ``mini-multi``.
        device: Device of the index encoders.

    Raises:
        UsageError: The extra ``mcp`` is not installed, or two indexes have one name.
        NotFoundError: A model or an index does not exist.
        CheckFailedError: An index is damaged, or its model has changed.
    """
    errors.require_libraries("mcp", extra="mcp")
    folders = _folders_by_name(indexes)
    from promptcli.plugins.serve.agents import make_server

    models = {}
    if model is not None or not indexes:
        models = _open_models([model or ModelChoice(SEARCH_MODEL, device=device)])
    opened_indexes = _open_indexes(folders, models, device)
    encoders = [*models.values(), *(index.open_encoder() for index in opened_indexes.values())]
    server = make_server(opened_indexes, encoders[0])
    note(f"ready for an agent; indexes: {', '.join(opened_indexes) or 'none'}")
    stdin = os.dup(0)  # the protocol's library replaces descriptor 0
    # nothing ends a thread that waits for a line of stdin; a worker's thread does not delay our end
    context = contextvars.copy_context()
    _until_client_leaves(Worker().submit(context.run, server.run, "stdio"), stdin)


def _until_client_leaves(running: Future[None], stdin: int) -> None:
    """Wait until a server has ended, or until its client has gone or has closed ``stdin``.

    In the second case the server may still wait to write to the client.
    """
    ended = threading.Event()
    running.add_done_callback(lambda server: ended.set())

    def watch() -> None:
        hangup = select.poll()
        hangup.register(stdin, 0)
        hangup.poll()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    ended.wait()
    try:
        running.result(_END_TIMEOUT_S)
    except* (BrokenPipeError, TimeoutError):
        pass


def _folders_by_name(folders: str | Path | Sequence[str | Path]) -> dict[str, Path]:
    """Return the folders of indexes by the names of the indexes; refuse a repeated name."""
    by_name = dict[str, Path]()
    for folder in map(Path, list_of_names(folders)):
        name = files.real_path(folder).name
        if name in by_name:
            raise UsageError(f"two indexes are called {name!r}; rename the folder of one")
        by_name[name] = folder
    return by_name


def _listen(settings: ServeSettings) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listening = socket.create_server(addresses[0][-1], family=addresses[0][0])
        # accepted sockets inherit the option; without it, the body of an answer waits 40 ms for the
        # client's acknowledgement
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, ValueError) as error:  # ValueError: not a host name
        reason = getattr(error, "strerror", None) or "not a host name"
        raise PromptcliError(
            f"cannot listen on {settings.host[:80]} port {settings.port}: {reason}; choose"
            " another host, or another port (0: any free port)"
        ) from None


def _open_models(models: "Sequence[Model]") -> "dict[str, Encoder]":
    """Return encoders by the names that requests use."""
    from promptcli.models import loading

    encoders: dict[str, Encoder] = {}
    for model in models:
        word = model.model if isinstance(model, ModelChoice) else model
        name = str(word) if isinstance(word, str | Path) else loading.resolve_entry(model).name
        if name in encoders:
            raise UsageError(f"two models are called {name!r}; name each once")
        encoders[name] = loading.open_encoder(
            model, dtype="auto", backbone_donors=encoders.values()
        )
    return encoders


def _open_indexes(
    folders: Mapping[str, Path], models: "Mapping[str, Encoder]", device: str
) -> "dict[str, SentenceIndex]":
    """Open indexes by name; an encoder that no model shares is opened on the device."""
    from promptcli.retrieval.sentence_index import SentenceIndex

    encoders = list(models.values())
    indexes: dict[str, SentenceIndex] = {}
    for name, folder in folders.items():
        origin = SentenceIndex.open(folder).load_origin()
        same = next(filter(origin.is_made_by, encoders), None)
        index = SentenceIndex.open(folder, same or ModelChoice(device=device))
        encoder = index.open_encoder()
        encoder.in_role("query", report=True)
        encoders.append(encoder)
        indexes[name] = index
    return indexes
