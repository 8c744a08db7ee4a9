"""What goes into an index and what is asked of it: sentences encoded window by window, or stored vectors and texts.

And the encoder that they come from: remembered at the build, made again for a search, compared with others. Knows
nothing of FAISS.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from promptcli.data.streams import STANDARD
from promptcli.data.tables import Fields
from promptcli.data.text import Source, open_source
from promptcli.data.vectors import Vectors, holds_vectors, manifest_path, open_sink, read_vectors
from promptcli.data.vectors.formats import Floats, ParquetRows
from promptcli.data.vectors.part_folder import PartFolder, is_part_folder
from promptcli.data.vectors.precision import PRECISIONS
from promptcli.encoder.embedding import EmbedReport, embed_stream, windows
from promptcli.encoder.encoded import Progress
from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError
from promptcli.index.rows import ArrayRows, Rows
from promptcli.index.stored import Origin
from promptcli.notes import is_shown, working
from promptcli.recipe import Recipe
from promptcli.registry.registry import Entry, Registry, portable

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder

#: Queries encoded and searched at once.
_WINDOW = 1024

#: Makes an encoder, once the input is known to be right.
Opener = Callable[[], "Encoder"]


@dataclass(frozen=True)
class Incoming:
    """Rows that are to be indexed, and how their encoding went (None: none was needed)."""

    rows: Rows
    report: EmbedReport | None


@dataclass(frozen=True)
class RowFiles:
    """Where the rows of an index are to come from."""

    file: Path  #: Sentences as for ``embed`` (``-`` for ``stdin``), or vectors.
    texts: Path | None  #: The sentences that a file of vectors was made from.
    fields: Fields  #: Of the file that holds sentences.
    stdin: BinaryIO | None = None
    spool: Path | None = None  #: The folder on whose disk encoded rows wait; None: that of temporary files.

    @property
    def are_vectors(self) -> bool:
        """Whether ``file`` holds vectors."""
        if self.file.is_dir():
            return is_part_folder(self.file) or any(path.suffix == ".parquet" for path in self.file.iterdir())
        return self.file != STANDARD and holds_vectors(self.file)

    def encoded(self, opener: Opener) -> "tuple[Incoming, Encoder]":
        """Return the rows of a file of sentences."""
        if self.texts is not None:
            raise UsageError(f"{self.file} holds sentences itself; leave out --texts, it is for .npy and .safetensors")
        with open_source(self.file, self.fields, stdin=self.stdin) as source:
            encoder = opener()
            with working("index", source.total() if is_shown() else None) as advance:
                return _encode_rows(encoder, source, self.spool, advance), encoder

    def stored(self) -> "tuple[Incoming, dict[str, Any] | None]":
        """Return the rows of a file of vectors, and its manifest where it has one."""
        if self.texts is None and self.fields != Fields():
            raise UsageError(f"{self.file} holds vectors; --text-field and --id-field are for sentences")
        if self.file.is_dir():
            if self.texts is not None:
                raise UsageError(f"{self.file} is a folder of parts, which hold their texts; leave out --texts")
            if is_part_folder(self.file):
                parts = PartFolder(self.file)
                return Incoming(parts, None), vars(parts.manifest)
            inside = (path for path in self.file.iterdir() if path.suffix == ".parquet" and path.name[0] not in "._")
            return Incoming(ParquetRows(sorted(inside)), None), None
        return _stored_rows(self.file, self.texts, self.fields)


def rows_to_build(files: RowFiles, opener: Opener, *, named: bool, model: str | None) -> "tuple[Incoming, Origin]":
    """Return the rows of a new index, and the encoder they come from.

    Args:
        files: The input.
        opener: Makes the encoder; not called for vectors that say which encoder made them, unless ``named``.
        named: Whether the user named the encoder.
        model: The registry entry that holds its fitted numbers, if it has any.

    Raises:
        UsageError: vectors of another encoder than the one that is named, or of an unknown one.
    """
    if not files.are_vectors:
        rows, encoder = files.encoded(opener)
        return rows, origin_of(encoder, model)
    rows, manifest = files.stored()
    if named:
        encoder = opener()
        if manifest is not None:
            check_same(manifest["fingerprint"], encoder.fingerprint, str(files.file), "the encoder you name")
        width = rows.rows.shape[1]
        if width != encoder.width:
            raise UsageError(f"{files.file}: vectors of width {width}, but the encoder's are {encoder.width}")
        return rows, origin_of(encoder, model)
    if manifest is None:
        raise UsageError(f"{files.file} has no manifest, so its encoder is unknown; name it, e.g. --model NAME")
    recipe = portable(Recipe.from_dict(manifest["recipe"]))
    return rows, Origin(manifest["fingerprint"], recipe.to_dict(), None, manifest["model"])


def rows_to_add(files: RowFiles, origin: Origin, opener: Opener) -> "Incoming":
    """Return rows for an index whose vectors come from ``origin``; ``opener`` makes that encoder.

    Raises:
        UsageError: vectors of another encoder, or of an unknown one.
        CheckFailedError: the encoder cannot be made again.
    """
    if not files.are_vectors:
        return files.encoded(opener)[0]
    rows, manifest = files.stored()
    _check_manifest(manifest, origin, files.file)
    return rows


def read_queries(files: RowFiles, origin: Origin, opener: Opener) -> "Iterator[tuple[list[str], Floats]]":
    """Yield the queries of a file, text or else id, and their vectors (q, d), window by window.

    Stored vectors need no encoder.
    """
    if files.are_vectors:
        stored, manifest = RowFiles(files.file, None, files.fields).stored()
        _check_manifest(manifest, origin, files.file)
        for block in stored.rows.blocks():
            yield list(block.texts or map(str, block.ids)), block.vectors
        return
    with open_source(files.file, files.fields, stdin=files.stdin) as source:
        encoder = opener()
        for part in windows(source, lambda record: len(record.text), size=_WINDOW):
            texts = [record.text for record in part]
            yield texts, encoder.encode(texts)


def _check_manifest(manifest: "dict[str, object] | None", origin: Origin, file: Path) -> None:
    if manifest is None:
        raise UsageError(f"{file} has no manifest, so its encoder is unknown; embed the sentences again with -o FILE")
    check_same(str(manifest["fingerprint"]), origin.fingerprint, str(file))


def _encode_rows(encoder: "Encoder", source: Source, folder: Path | None, progress: Progress) -> Incoming:
    """Encode all sentences of a source, window by window, into a nameless file on the disk of ``folder``.

    Raises:
        PromptcliError: see ``embed_stream`` and ``Source``.
    """
    spool = cast(BinaryIO, tempfile.TemporaryFile(dir=folder))
    with open_sink(spool, ".parquet", encoder.width) as sink:
        report = embed_stream(encoder, source, sink, progress=progress)
    return Incoming(ParquetRows({Path(source.name): spool}), report)


def _stored_rows(path: Path, texts: Path | None, fields: Fields) -> tuple[Incoming, dict[str, Any] | None]:
    """Return the rows of a vector file, and its manifest where it has one.

    Args:
        path: The vector file.
        texts: The file of sentences it was made from, for a file that holds no texts itself.
        fields: Of that file.

    Raises:
        NotFoundError, UsageError: see ``read_vectors`` and ``open_source``; or the rows are not equally many.
        CheckFailedError: a damaged file, or ``texts`` is not the file that the manifest names.
    """
    vectors = read_vectors(path)
    if PRECISIONS[vectors.precision].packed:
        raise UsageError(f"{path} holds one bit a number; embed again with --precision float32, float16 or int8")
    if vectors.manifest is not None and not {"fingerprint", "recipe", "model"} <= vectors.manifest.keys():
        raise CheckFailedError(f"{manifest_path(path)} does not say which encoder made the vectors; embed again")
    if texts is not None:
        vectors = _with_texts(vectors, path, texts, fields)
    return Incoming(ArrayRows(vectors.matrix, vectors.ids, vectors.texts), None), vectors.manifest


def _with_texts(vectors: Vectors, path: Path, texts: Path, fields: Fields) -> Vectors:
    if vectors.texts is not None:
        raise UsageError(f"{path} holds its texts itself; leave out --texts")
    with open_source(texts, fields) as source:
        records = list(source)
        digest = source.sha256()
    if len(records) != len(vectors.matrix):
        raise UsageError(f"{texts} has {len(records):,} sentences and {path} {len(vectors.matrix):,} vectors")
    expected = ((vectors.manifest or {}).get("input") or {}).get("sha256", digest)
    if digest != expected:
        raise CheckFailedError(
            f"{texts} is not the file that {path} was made from (its sha256 differs); embed it again"
        )
    ids: Any = [record.id for record in records]
    return replace(vectors, ids=ids, texts=[record.text for record in records])


def origin_of(encoder: "Encoder", model: str | None = None) -> Origin:
    """Return what an index remembers of its encoder.

    Args:
        encoder: It made the vectors.
        model: The registry entry that it was loaded from; remembered where the recipe alone does not make it again.
    """
    model = model if encoder.tensors() else None
    return Origin(encoder.fingerprint, portable(encoder.recipe).to_dict(), model, encoder.provenance)


def rebuild_encoder(origin: Origin, registry: Registry | None, make: "Callable[[Entry, str], Encoder]") -> "Encoder":
    """Return the encoder of an index.

    Args:
        origin: What the index remembers.
        registry: Holds its fitted numbers, where it has any.
        make: Makes an encoder from an entry and a precision (``auto``, ``float32``, ``bfloat16``).

    Raises:
        CheckFailedError: what its recipe makes now is another encoder.
        NotFoundError: its registry entry or backbone is not there.
    """
    if origin.model is not None and registry is None:
        raise NotFoundError(f"the encoder of the index is model {origin.model!r}, give the registry that holds it")
    registry = registry or Registry(Path(os.devnull))  # what is shipped
    if origin.model is not None:
        entries = [replace(registry.load(origin.model), recipe=Recipe.from_dict(origin.recipe))]
    else:
        entries = [*_alike(registry, origin.recipe), Entry("recipe", Recipe.from_dict(origin.recipe))]
    for entry in entries:
        try:
            encoder = make(entry, str(origin.provenance.get("dtype", "auto")))
        except UsageError as error:
            if origin.model is not None:
                raise
            raise UsageError(
                f"{error}; if a registry entry made the vectors, build the index with --model NAME"
            ) from None
        if encoder.fingerprint == origin.fingerprint:
            return encoder
    raise CheckFailedError(
        f"the encoder of the index is {origin.fingerprint[:12]}, but its recipe on {origin.recipe['backbone']!r}"
        f" now makes {encoder.fingerprint[:12]}: the weights, tokenizer or fitted numbers have changed; build the"
        " index again"
    )


def _alike(registry: Registry, recipe: dict[str, Any]) -> Iterator[Entry]:
    """Yield the entries of a recipe that hold learned numbers: nothing else says which one made stored vectors."""
    for name in registry.names():
        with suppress(PromptcliError):  # one that is damaged made none
            card = registry.card(name)
            if card.tensors and portable(card.recipe).to_dict() == recipe:
                yield registry.load(name)


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
