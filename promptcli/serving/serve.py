"""Serving models and indexes over HTTP."""

import functools
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from promptcli.errors import NotFoundError, UsageError, did_you_mean
from promptcli.index.indexing import encoder_of
from promptcli.models import loading as encoders
from promptcli.models.loading import Model
from promptcli.notes import note
from promptcli.serving.settings import ServeSettings
from promptcli.storage.files import real_path

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder
    from promptcli.serving.service import ServedIndex


def serve(
    models: Sequence[str] = ("mini",),
    indexes: Sequence[str | Path] = (),
    *,
    settings: ServeSettings | None = None,
    normalize: bool = False,
    key: str | None = None,
    log: Callable[[str], None] = note,
    backend: str = "torch",
    device: str = "auto",
    dtype: str = "auto",
    threads: int | None = None,
) -> int | None:
    """Serve embeddings through an API compatible with OpenAI's, search, similarity and a page, until SIGTERM or Ctrl-C.

    Args:
        models: What ``load`` takes; requests name them as they are written here, the first is the default.
        indexes: Folders of indexes, named after their folders.
        settings: Where to listen, and limits.
        normalize: Scale every embedding to length 1.
        key: Asked of every request but the page and ``/health``.
        log: Takes a line on what goes wrong.
        backend: See ``load``.
        device: See ``load``.
        dtype: See ``load``.
        threads: Processor threads of searches.

    Returns:
        None where everything accepted was finished, else the number of the second signal, which ended it at once.

    Raises:
        UsageError: The extra ``serve`` is not installed, or two indexes have one name.
        NotFoundError: A model or an index that is not there.
        PromptcliError: The address cannot be listened on.
    """
    needed = ("starlette", "uvicorn", "prometheus_client")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise UsageError(f"serve needs {' and '.join(missing)}, which is not installed: pip install 'promptcli[serve]'")
    names = [real_path(Path(folder)).name for folder in indexes]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"two indexes are called {twice[0]!r}; rename the folder of one")
    from promptcli.serving.running import bind
    from promptcli.serving.running import serve as run

    given = settings or ServeSettings()
    with bind(given) as listening:  # before the models are loaded
        from promptcli.index.vector_index import set_threads
        from promptcli.serving.service import Served, Service

        opened = _models(models, backend, device, dtype)
        searched = _indexes(indexes, opened, device)
        if key is None and given.host not in ("127.0.0.1", "localhost", "::1"):
            note(f"anybody who reaches {given.host} can use it; to ask for a key: PROMPTCLI_API_KEY=...")
        served = Served(opened, searched, normalize)
        # FAISS keeps the number of threads for each thread that calls it
        prepare = functools.partial(set_threads, threads) if threads is not None else lambda: None
        service = Service(served, given, key=key, log=log, prepare=prepare)
        shown = ", ".join([*opened, *(f"index {name}" for name in searched)])
        second = run(service, listening, ready=lambda url: note(f"serving {shown} at {url}"))
    if second is None:
        note(f"stopped; {service.metrics.answered:,} requests were answered")
    return second


def _models(names: Sequence[str], backend: str, device: str, dtype: str) -> "dict[str, Encoder]":
    """Return the encoders by the names given; those of one backbone share it."""
    distinct: list[Model] = list(dict.fromkeys(names))
    try:
        opened = encoders.open_models(distinct, backend=backend, device=device, dtype=dtype)
    except NotFoundError as error:
        known = encoders.open_registry().names()
        near = "".join(did_you_mean(name, known) for name in names if name not in known)
        raise NotFoundError(f"{error}{'' if 'did you mean' in str(error) else near}") from None
    return dict(zip(map(str, distinct), opened, strict=True))


def _indexes(folders: Sequence[str | Path], models: "dict[str, Encoder]", device: str) -> "dict[str, ServedIndex]":
    """Return the indexes by their folders' names; the encoder is a served model's where that is the same."""
    from promptcli.index.stored import load
    from promptcli.serving.service import ServedIndex

    known = {encoder.fingerprint: encoder for encoder in models.values()}
    served: dict[str, ServedIndex] = {}
    for folder in map(Path, folders):
        stored = load(folder)
        encoder = known.get(stored.origin.fingerprint) or encoder_of(stored.origin, device)
        known[encoder.fingerprint] = encoder
        name = real_path(folder).name
        served[name] = ServedIndex(name, stored.index, encoder)
    return served
