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

from promptcli.data.dialect import Fields
from promptcli.data.files import STANDARD
from promptcli.data.rows import open_rows, windows
from promptcli.data.vectors import holds_vectors, manifest_path, open_sink, read_vectors
from promptcli.data.vectors.formats import Floats, ParquetRows
from promptcli.data.vectors.part_folder import PartFolder, is_part_folder
from promptcli.data.vectors.precision import PRECISIONS
from promptcli.embedding.writing import WINDOW_CHARACTERS, EmbedReport, embed_stream
from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError
from promptcli.index.rows import ArrayRows, Rows
from promptcli.index.stored import Origin
from promptcli.models.registry import Entry, Registry, portable
from promptcli.notes import is_shown, working
from promptcli.recipe import Recipe
from promptcli.storage.files import sha256

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder

#: Queries encoded and searched at once.
_WINDOW = 1024

#: Makes an encoder, once the input is known to be right.
Opener = Callable[[], "Encoder"]


@dataclass(frozen=True)
class Incoming:
    """Rows that are to be indexed."""

    rows: Rows
    report: EmbedReport | None = None  #: How their encoding went; None: none was needed.
    manifest: dict[str, Any] | None = None  #: Of stored vectors: what made them.


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

    def digests(self) -> dict[str, str | None] | None:
        """Return which bytes are read and how, JSON-ready; None for a pipe, a stream or a folder."""
        if not self.file.is_file() or (self.texts is not None and not self.texts.is_file()):
            return None
        of_texts = None if self.texts is None else sha256(self.texts)
        return {
            "file": sha256(self.file),
            "texts": of_texts,
            "text_field": self.fields.text,
            "id_field": self.fields.id,
        }

    def encoded(self, opener: Opener) -> "tuple[Incoming, Encoder]":
        """Return the rows of a file of sentences, encoded window by window into a nameless file, and the encoder."""
        if self.texts is not None:
            raise UsageError(f"{self.file} holds sentences itself; leave out `texts`, it is for .npy and .safetensors")
        with open_rows(self.file, self.fields, stdin=self.stdin) as source:
            encoder = opener()
            with working("index", source.total() if is_shown() else None) as advance:
                spool = cast(BinaryIO, tempfile.TemporaryFile(dir=self.spool))
                with open_sink(spool, ".parquet", encoder.width) as sink:
                    report = embed_stream(encoder, source, sink, progress=advance)
                return Incoming(ParquetRows({self.file: spool}), report), encoder

    def stored(self, origin: Origin | None = None) -> Incoming:
        """Return the rows of vectors; ``origin``: they must come from that encoder.

        Raises:
            NotFoundError, UsageError: See ``read_vectors`` and ``open_source``; other options, an unknown encoder or
                another one, or texts that are not equally many.
            CheckFailedError: A damaged file, or ``texts`` is not the file that the manifest names.
        """
        if self.texts is None and self.fields != Fields():
            raise UsageError(f"{self.file} holds vectors; `text_field` and `id_field` are for sentences")
        incoming = self._in_folder() if self.file.is_dir() else self._in_file()
        if origin is not None and incoming.manifest is None:
            raise UsageError(f"{self.file} has no manifest, so its encoder is unknown; embed the sentences again")
        if origin is not None and incoming.manifest is not None:
            check_same(str(incoming.manifest["fingerprint"]), origin.fingerprint, str(self.file))
        return incoming

    def _in_folder(self) -> Incoming:
        if self.texts is not None:
            raise UsageError(f"{self.file} is a folder of parts, which hold their texts; leave out `texts`")
        if is_part_folder(self.file):
            parts = PartFolder(self.file)
            return Incoming(parts, manifest=vars(parts.manifest))
        inside = (path for path in self.file.iterdir() if path.suffix == ".parquet" and path.name[0] not in "._")
        return Incoming(ParquetRows(sorted(inside)))

    def _in_file(self) -> Incoming:
        import pyarrow as pa

        vectors = read_vectors(self.file)
        if PRECISIONS[vectors.precision].packed:
            raise UsageError(
                f"{self.file} holds one bit a number; embed again with `precision` float32, float16 or int8"
            )
        about = vectors.manifest
        if about is not None and not {"fingerprint", "recipe", "model"} <= about.keys():
            raise CheckFailedError(
                f"{manifest_path(self.file)} does not say which encoder made the vectors; embed again"
            )
        if self.texts is None:
            return Incoming(ArrayRows(vectors.matrix, vectors.ids, vectors.texts), manifest=about)
        if vectors.texts is not None:
            raise UsageError(f"{self.file} holds its texts itself; leave out `texts`")
        with open_rows(self.texts, self.fields) as source:
            table = pa.Table.from_batches(source)
            digest = source.sha256()
        if len(table) != len(vectors.matrix):
            raise UsageError(
                f"{self.texts} has {len(table):,} sentences and {self.file} {len(vectors.matrix):,} vectors"
            )
        if digest != ((about or {}).get("input") or {}).get("sha256", digest):
            raise CheckFailedError(
                f"{self.texts} is not the file that {self.file} was made from (its sha256 differs); embed it again"
            )
        ids, texts = table.column("id").to_pylist(), table.column("text").to_pylist()
        return Incoming(ArrayRows(vectors.matrix, ids, texts), manifest=about)


def rows_to_build(files: RowFiles, opener: Opener, *, named: bool, model: str | None) -> tuple[Incoming, Origin]:
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
    rows = files.stored()
    about = rows.manifest
    if named:
        encoder = opener()
        if about is not None:
            check_same(about["fingerprint"], encoder.fingerprint, str(files.file), "the encoder you name")
        width = rows.rows.shape[1]
        if width != encoder.width:
            raise UsageError(f"{files.file}: vectors of width {width}, but the encoder's are {encoder.width}")
        return rows, origin_of(encoder, model)
    if about is None:
        raise UsageError(f"{files.file} has no manifest, so its encoder is unknown; name it, e.g. `model` NAME")
    recipe = portable(Recipe.from_dict(about["recipe"]))
    return rows, Origin(about["fingerprint"], recipe.to_dict(), None, about["model"])


def rows_to_add(files: RowFiles, origin: Origin, opener: Opener) -> Incoming:
    """Return rows for an index whose vectors come from ``origin``; ``opener`` makes that encoder.

    Raises:
        UsageError: vectors of another encoder, or of an unknown one.
        CheckFailedError: the encoder cannot be made again.
    """
    return files.stored(origin) if files.are_vectors else files.encoded(opener)[0]


def read_queries(files: RowFiles, origin: Origin, opener: Opener) -> Iterator[tuple[list[str], Floats]]:
    """Yield the queries of a file, text or else id, and their vectors (q, d), window by window.

    Stored vectors need no encoder.
    """
    if files.are_vectors:
        for block in replace(files, texts=None).stored(origin).rows.blocks():
            yield list(block.texts or map(str, block.ids)), block.vectors
        return
    with open_rows(files.file, files.fields, stdin=files.stdin) as source:
        encoder = opener()
        for batch in windows(source, _WINDOW, WINDOW_CHARACTERS):
            texts = batch.column("text").to_pylist()
            yield texts, encoder.encode(texts)


def origin_of(encoder: "Encoder", model: str | None = None) -> Origin:
    """Return what an index remembers of its encoder: the model's name where the recipe does not make it again."""
    model = model if encoder.tensors() else None
    return Origin(encoder.fingerprint, portable(encoder.recipe).to_dict(), model, encoder.provenance)


def rebuild_encoder(origin: Origin, registry: Registry | None, make: "Callable[[Entry, str], Encoder]") -> "Encoder":
    """Return the encoder of an index, its fitted numbers, where it has any, from the registry.

    ``make`` makes an encoder from an entry and a precision (``auto``, ``float32``, ``bfloat16``).

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
                f"{error}; if a registry entry made the vectors, build the index with `model` NAME"
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
