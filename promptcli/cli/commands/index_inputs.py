"""From the arguments of ``index`` to rows, queries and encoders. Part of the entrance."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from promptcli.cli import console
from promptcli.cli.options import ModelChoice, Runtime
from promptcli.errors import CheckFailedError, UsageError

if TYPE_CHECKING:
    import numpy as np

    from promptcli.data.tables import Fields
    from promptcli.encoder.encoder import Encoder
    from promptcli.index.gather import Gathered
    from promptcli.index.stored import Origin

#: Stands for standard input.
STANDARD = "-"

#: Queries encoded and searched at once.
_WINDOW = 1024


def rows_to_build(
    file: Path, texts: Path | None, fields: "Fields", choice: ModelChoice, runtime: Runtime
) -> "tuple[Gathered, Origin]":
    """Return the rows of a new index, and the encoder they come from.

    Raises:
        UsageError: vectors of another encoder than the one that is named, or of an unknown one.
    """
    from promptcli.encoder.recipe import Recipe
    from promptcli.index.gather import stored_rows
    from promptcli.index.stored import Origin
    from promptcli.registry.registry import portable

    def opened() -> "Encoder":
        from promptcli.cli.opening import open_encoder

        return open_encoder(choice, runtime, default_dtype="auto")

    if not _are_vectors(file):
        rows, encoder = _encoded(file, texts, fields, opened, runtime)
        return rows, _origin(encoder, choice)
    _check_fields(file, texts, fields)
    rows, manifest = stored_rows(file, texts, fields)
    if choice.model or choice.recipe or choice.changes():
        encoder = opened()
        if manifest is not None:
            check_same(manifest["fingerprint"], encoder.fingerprint, str(file), "the encoder you name")
        if rows.vectors.shape[1] != encoder.width:
            raise UsageError(f"{file}: vectors of width {rows.vectors.shape[1]}, but the encoder's are {encoder.width}")
        return rows, _origin(encoder, choice)
    if manifest is None:
        raise UsageError(f"{file} has no manifest, so its encoder is unknown; name it, e.g. --model NAME")
    recipe = portable(Recipe.from_dict(manifest["recipe"]))
    return rows, Origin(manifest["fingerprint"], recipe.to_dict(), None, manifest["model"])


def rows_to_add(file: Path, texts: Path | None, fields: "Fields", origin: "Origin", runtime: Runtime) -> "Gathered":
    """Return rows for an index whose vectors come from ``origin``.

    Raises:
        UsageError: vectors of another encoder, or of an unknown one.
        CheckFailedError: the encoder cannot be made again.
    """
    from promptcli.index.gather import stored_rows

    if not _are_vectors(file):
        return _encoded(file, texts, fields, lambda: rebuilt(origin, runtime), runtime)[0]
    _check_fields(file, texts, fields)
    rows, manifest = stored_rows(file, texts, fields)
    _check_manifest(manifest, origin, file)
    return rows


def queries(
    query: str, are_many: bool, fields: "Fields", origin: "Origin", runtime: Runtime
) -> "Iterator[tuple[list[str], np.ndarray]]":
    """Yield the queries, text or else id, and their vectors (q, d), window by window; stored vectors need no encoder.

    Args:
        query: A sentence, or where ``are_many`` a file or ``-``.
        are_many: See there.
        fields: Of a file of sentences.
        origin: The encoder of the index.
        runtime: Device, precision, threads, network.
    """
    from promptcli.data.text import open_source
    from promptcli.encoder.embedding import windows
    from promptcli.index.gather import stored_rows

    if not are_many:
        _check_encodable(query)
        yield [query], rebuilt(origin, runtime).encode([query])
        return
    path = Path(query)
    if _are_vectors(path):
        rows, manifest = stored_rows(path, None, fields)
        _check_manifest(manifest, origin, path)
        yield rows.texts or [str(name) for name in rows.ids], rows.vectors
        return
    with open_source(path, fields, stdin=_stdin(path)) as source:
        encoder = rebuilt(origin, runtime)
        for part in windows(source, lambda record: len(record.text), size=_WINDOW):
            texts = [record.text for record in part]
            yield texts, encoder.encode(texts)


def rebuilt(origin: "Origin", runtime: Runtime) -> "Encoder":
    """Return the encoder of an index.

    Raises:
        CheckFailedError: what its recipe makes now is another encoder.
        NotFoundError: its registry entry or backbone is not there.
    """
    from promptcli.cli.opening import configure_libraries, open_entries, open_registry
    from promptcli.encoder.recipe import Recipe
    from promptcli.registry.registry import Entry

    configure_libraries(runtime)
    tensors = {} if origin.model is None else open_registry().load(origin.model).tensors
    entry = Entry(origin.model or "recipe", Recipe.from_dict(origin.recipe), tensors)
    try:
        encoder = open_entries([entry], runtime, default_dtype=origin.provenance.get("dtype", "auto"))[0]
    except UsageError as error:
        if origin.model is not None:
            raise
        raise UsageError(f"{error}; if a registry entry made the vectors, build the index with --model NAME") from None
    if encoder.fingerprint != origin.fingerprint:
        raise CheckFailedError(
            f"the encoder of the index is {origin.fingerprint[:12]}, but its recipe on {origin.recipe['backbone']!r}"
            f" now makes {encoder.fingerprint[:12]}: the weights, tokenizer or fitted numbers have changed; build the"
            " index again"
        )
    return encoder


def check_same(given: str, wanted: str, name: str, other: str = "the index") -> None:
    """Refuse vectors of another encoder.

    Raises:
        UsageError: the fingerprints differ.
    """
    if given != wanted:
        raise UsageError(
            f"{name} comes from encoder {given[:12]}, {other} from {wanted[:12]}: their vectors cannot be compared;"
            " embed the sentences again"
        )


def _are_vectors(path: Path) -> bool:
    from promptcli.data.vectors.reading import holds_vectors

    return str(path) != STANDARD and holds_vectors(path)


def _encoded(
    file: Path, texts: Path | None, fields: "Fields", opened: "Callable[[], Encoder]", runtime: Runtime
) -> "tuple[Gathered, Encoder]":
    from promptcli.data.text import open_source
    from promptcli.index.gather import encode_rows

    if texts is not None:
        raise UsageError(f"{file} holds sentences itself; leave out --texts, it is for .npy and .safetensors")
    with open_source(file, fields, stdin=_stdin(file)) as source:
        encoder = opened()
        total = source.total() if console.err.is_terminal and not runtime.quiet else None
        with console.progress("index", total, quiet=runtime.quiet) as progress:
            return encode_rows(encoder, source, progress), encoder


def _origin(encoder: "Encoder", choice: ModelChoice) -> "Origin":
    from promptcli.cli.opening import open_registry
    from promptcli.index.stored import Origin
    from promptcli.registry.registry import portable

    model = None
    if choice.model is not None and encoder.tensors():
        model = open_registry().aliases().get(choice.model, choice.model)
    return Origin(encoder.fingerprint, portable(encoder.recipe).to_dict(), model, encoder.provenance)


def _check_manifest(manifest: "dict[str, object] | None", origin: "Origin", file: Path) -> None:
    if manifest is None:
        raise UsageError(f"{file} has no manifest, so its encoder is unknown; embed the sentences again with -o FILE")
    check_same(str(manifest["fingerprint"]), origin.fingerprint, str(file))


def _check_fields(file: Path, texts: Path | None, fields: "Fields") -> None:
    if texts is None and fields != type(fields)():
        raise UsageError(f"{file} holds vectors; --text-field and --id-field are for sentences")


def _check_encodable(sentence: str) -> None:
    if not sentence.strip():
        raise UsageError("the query is empty; give a sentence, a file, or - for standard input")
    try:
        sentence.encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(f"{sentence!r} is not UTF-8; set a UTF-8 locale, e.g. LC_ALL=C.UTF-8") from None


def _stdin(path: Path) -> BinaryIO | None:
    return sys.stdin.buffer if str(path) == STANDARD else None
