"""The rows that go into an index, and its queries: sentences encoded window by window, or stored vectors.

And the encoder that they come from: remembered at the build, made again for a search, compared with others.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa

from promptcli.data.dialect import CELLS, Fields
from promptcli.data.files import STANDARD
from promptcli.data.rows import Batch, open_rows, windows
from promptcli.data.vectors import EmbedReport, Manifest, holds_vectors, read_vectors
from promptcli.data.vectors.formats import Floats, ParquetRows, open_sink
from promptcli.data.vectors.part_folder import PartFolder, is_part_folder
from promptcli.data.vectors.precision import PRECISIONS
from promptcli.embedding.splitting import Splitter
from promptcli.embedding.writing import WINDOW_CHARACTERS, embed_stream
from promptcli.errors import CheckFailedError, NotFoundError, PromptcliError, UsageError
from promptcli.index.rows import ArrayRows, Rows
from promptcli.index.stored import Origin
from promptcli.models import loading as encoders
from promptcli.models.entries import TENSORS, Entry
from promptcli.models.registry import Registry, portable
from promptcli.notes import is_shown, note, working
from promptcli.recipe import Choice, Recipe
from promptcli.storage.files import real_path, sha256

if TYPE_CHECKING:
    from promptcli.encoder.encoder import Encoder
    from promptcli.models.loading import Model

#: Queries encoded and searched at once.
_WINDOW = 1024

#: Makes an encoder, after the input was checked.
Opener = Callable[[], "Encoder"]


@dataclass(frozen=True)
class Incoming:
    """Rows to be indexed."""

    rows: Rows
    origin: Origin | None = None  #: The encoder that they come from; None if it is unknown.
    report: EmbedReport | None = None  #: The report of their encoding; None for stored vectors.


class RowFiles:
    """The files that the rows of an index come from: sentences as for ``embed``, or vectors.

    Encoded rows wait on the disk of the index ``near``. ``texts``: the sentences that a file of vectors was made from.
    """

    def __init__(
        self,
        file: str | Path | BinaryIO,
        texts: str | Path | None = None,
        text_field: str | None = None,
        id_field: str | None = None,
        near: Path | None = None,
        skip_bad: bool = False,
        split: bool = False,
    ) -> None:
        self.stdin: BinaryIO | None = None if isinstance(file, str | Path) else file
        self.file = Path(file) if isinstance(file, str | Path) else STANDARD
        self.texts, self.fields = (
            None if texts is None else Path(texts),
            Fields(text_field, id_field, skip_bad=skip_bad),
        )
        self.near, self.split = near, split

    @property
    def are_vectors(self) -> bool:
        """Whether ``file`` holds vectors."""
        if self.file.is_dir():
            return is_part_folder(self.file) or any(path.suffix == ".parquet" for path in self.file.iterdir())
        return self.file != STANDARD and holds_vectors(self.file)

    def source(self) -> dict[str, Any] | None:
        """Return hashes and columns of the files, JSON-ready; None for a stream or a folder."""
        if not self.file.is_file() or (self.texts is not None and not self.texts.is_file()):
            return None
        texts = None if self.texts is None else sha256(self.texts)
        columns = {"text_field": self.fields.text, "id_field": self.fields.id}
        return {
            "file": sha256(self.file),
            "texts": texts,
            **columns,
            "skip_bad": self.fields.skip_bad,
            "split": self.split,
        }

    def encode(self, opener: Opener, model: str | None = None, *, plain: bool = False) -> Incoming:
        """Return the rows of a file of sentences, encoded window by window into a nameless file.

        ``model`` is the registry's model that holds the encoder's fitted numbers; ``plain``: without the prompt for
        documents.
        """
        if self.texts is not None:
            raise UsageError(f"`texts` is for vectors, and {self.file} holds sentences")
        with open_rows(self.file, replace(self.fields, cells=True), stdin=self.stdin) as source:
            encoder = opener()
            documents = encoder if plain else encoder.in_role("document", report=True)
            batches, total = iter(source), source.total() if is_shown() else None
            if self.split:
                batches, total = Splitter(documents).batches(source), None
            rows, report = spooled(documents, batches, self.near, total)
        return Incoming(rows, origin_of(encoder, documents, model), report)

    def stored(self, origin: Origin | None = None) -> Incoming:
        """Return the rows of vectors; they must come from the encoder of ``origin``, if that is given."""
        if self.texts is None and self.fields != Fields():
            raise UsageError(
                f"`text_field`, `id_field` and `skip_bad` are for sentences, and {self.file} holds vectors"
            )
        incoming = self._read_folder() if self.file.is_dir() else self._read_file()
        if origin is not None:
            if incoming.origin is None:
                raise UsageError(f"{self.file} has no manifest, so its encoder is unknown; embed the sentences again")
            check_same(incoming.origin.fingerprint, origin.fingerprint, str(self.file))
        return incoming

    def _read_folder(self) -> Incoming:
        if self.texts is not None:
            raise UsageError(f"leave out `texts`: the parts in {self.file} hold their own")
        if is_part_folder(self.file):
            parts = PartFolder(self.file)
            return Incoming(parts, _origin(parts.manifest))
        inside = (path for path in self.file.iterdir() if path.suffix == ".parquet" and path.name[0] not in "._")
        return Incoming(ParquetRows(sorted(inside)))

    def _read_file(self) -> Incoming:
        vectors = read_vectors(self.file)
        if PRECISIONS[vectors.precision].packed:
            raise UsageError(f"{self.file} holds binary vectors; embed again with `precision` float32, float16 or int8")
        manifest = vectors.manifest
        if self.texts is None:
            return Incoming(ArrayRows(vectors.matrix, vectors.ids, vectors.texts), _origin(manifest))
        if vectors.texts is not None:
            raise UsageError(f"leave out `texts`: {self.file} holds its own")
        with open_rows(self.texts, replace(self.fields, cells=True)) as source:
            table = pa.Table.from_batches(source)
            digest = source.sha256()
        if len(table) != len(vectors.matrix):
            raise UsageError(
                f"{self.texts} has {len(table):,} sentences, {self.file} has {len(vectors.matrix):,} vectors"
            )
        if manifest is not None and manifest.input.sha256 != digest:
            raise CheckFailedError(f"{self.file} was made from another file than {self.texts} (by its sha256)")
        ids = range(len(table)) if table.column("id").type == pa.int64() else table.column("id").to_pylist()
        cells = table.column(CELLS).combine_chunks() if CELLS in table.column_names else None
        return Incoming(ArrayRows(vectors.matrix, ids, table.column("text").to_pylist(), cells), _origin(manifest))


def spooled(
    documents: "Encoder", batches: Iterable[Batch], near: Path | None, total: int | None
) -> tuple[ParquetRows, EmbedReport]:
    """Encode batches window by window into a nameless file on the disk of the index ``near``."""
    place = next((folder for folder in real_path(near).parents if folder.is_dir()), None) if near else None
    with working("index", total) as advance:
        spool = cast(BinaryIO, tempfile.TemporaryFile(dir=place))
        with open_sink(spool, ".parquet", documents.width) as sink:
            report = embed_stream(documents, batches, sink, progress=advance)
    return ParquetRows({Path("the rows"): spool}), report


def _origin(manifest: Manifest | None) -> Origin | None:
    if manifest is None:
        return None
    recipe = portable(Recipe.from_dict(manifest.recipe))
    return Origin(manifest.fingerprint, recipe.to_dict(), None, manifest.model, manifest.prompts)


def rows_to_build(files: RowFiles, opener: Opener, *, named: bool, model: str | None) -> tuple[Incoming, Origin]:
    """Return the rows of a new index, and the encoder they come from.

    The encoder is not opened for vectors whose manifest tells it, unless the user ``named`` one.
    """
    incoming = files.stored() if files.are_vectors else files.encode(opener, model)
    origin, width = incoming.origin, incoming.rows.shape[1]
    if files.are_vectors and named:
        encoder = opener()
        documents = encoder.in_role("document", report=origin is None)
        if origin is not None:
            documents = documents if documents.fingerprint == origin.fingerprint else encoder
            check_same(origin.fingerprint, documents.fingerprint, str(files.file), "the encoder you name")
        if width != encoder.width:
            raise UsageError(f"{files.file}: vectors of width {width}, but the encoder's are {encoder.width}")
        origin = origin_of(encoder, documents, model)
    if origin is None:
        raise UsageError(f"{files.file} has no manifest, so its encoder is unknown; give its name as `model`")
    text = origin.prompts.texts.get(origin.prompts.of("document") or "")
    if files.are_vectors and origin.prompt is None and text and text != origin.prompts.text:
        note(f"{files.file} was made without the model's prompt for documents, {text!r}; an index of sentences uses it")
    return incoming, origin


def read_queries(files: RowFiles, origin: Origin, opener: Opener | None) -> Iterator[tuple[list[str], Floats | None]]:
    """Yield the queries of a file (texts, or ids of vectors without) and their vectors (q, d), window by window.

    Without an ``opener`` they have no vectors.
    """
    if files.are_vectors:
        for block in files.stored(origin).rows.blocks():
            yield list(block.texts or map(str, block.ids)), block.vectors
        return
    with open_rows(files.file, files.fields, stdin=files.stdin) as source:
        encoder = opener().in_role("query", report=True) if opener is not None else None
        for window in windows(source, _WINDOW, WINDOW_CHARACTERS):
            texts = window.column("text").to_pylist()
            yield texts, None if encoder is None else encoder.encode(texts)


def is_named(model: "Model | None") -> bool:
    """Return whether the user chose an encoder, rather than nothing or only the device."""
    unchanged = isinstance(model, Choice) and (model.model, model.dim) == (None, None) and not model.changes
    return not (model is None or unchanged)


def registered(model: "Model") -> str | None:
    """Return the name of the registry's model, if one is named."""
    word = model.model if isinstance(model, Choice) else model
    if not isinstance(word, str):
        return None
    registry = encoders.open_registry()
    name = registry.aliases().get(word, word)
    return name if name in registry.names() else None


def origin_of(encoder: "Encoder", documents: "Encoder", model: str | None = None) -> Origin:
    """Return what an index remembers of a model and of its encoder in the role of the rows.

    ``model`` is the registry's that holds its fitted numbers.
    """
    model, prompts = model if encoder.tensors() else None, encoder.texts
    prompt = None if documents is encoder else prompts.of("document")
    return Origin(documents.fingerprint, portable(encoder.recipe).to_dict(), model, encoder.provenance, prompts, prompt)


def documents_of(origin: Origin, encoder: "Encoder") -> "Encoder":
    """Return a model in the role of the rows of an index."""
    return encoder if origin.prompt is None else encoder.in_role("document")


def missing_model(origin: Origin) -> str | None:
    """Return the model of an index if it was removed or moved."""
    if origin.model is not None:
        return None if encoders.open_registry().knows(origin.model) else origin.model
    folder = str(origin.recipe["backbone"])
    return folder if os.path.isabs(folder) and not os.path.exists(folder) else None


def encoder_of(origin: Origin, model: "Model | None" = None) -> "Encoder":
    """Return the model of an index: ``model``, if it is named, else made again from what the index remembers."""
    dtype = str(origin.provenance.get("dtype", "auto"))
    if model is not None and is_named(model):
        encoder = encoders.open_model(model, dtype=dtype)
        check_same(documents_of(origin, encoder).fingerprint, origin.fingerprint, "the encoder")
        return encoder
    if (name := missing_model(origin)) is not None:
        raise NotFoundError(f"the index comes from {name}, which was removed or moved; name that model as `model`")
    device = model.device if isinstance(model, Choice) else "auto"
    registry, recipe = encoders.open_registry(), Recipe.from_dict(origin.recipe)
    if origin.model is not None:
        entries = [replace(registry.load(origin.model), recipe=recipe)]
    else:
        entries = [*_fitted(registry, origin.recipe), Entry("recipe", recipe, prompts=origin.prompts)]
    for entry in entries:
        try:
            encoder = encoders.open_model(entry, device=device, dtype=dtype)
        except UsageError as error:
            if origin.model is not None:
                raise
            raise UsageError(f"{error}; build the index again with the `model` that made its vectors") from None
        if documents_of(origin, encoder).fingerprint == origin.fingerprint:
            return encoder
    raise CheckFailedError(
        f"the index comes from encoder {origin.fingerprint[:12]}, but its recipe on {origin.recipe['backbone']!r} now"
        f" makes {documents_of(origin, encoder).fingerprint[:12]}: the model has changed; build the index again"
    )


def _fitted(registry: Registry, recipe: dict[str, Any]) -> Iterator[Entry]:
    """Yield the models of a recipe that hold fitted numbers: nothing else tells which one made stored vectors."""
    for name in registry.names():
        with suppress(PromptcliError):  # a damaged one made none
            card = registry.card(name)
            if TENSORS in card.files and portable(card.recipe).to_dict() == recipe:
                yield registry.load(name)


def check_same(given: str, wanted: str, name: str, other: str = "the index") -> None:
    """Refuse vectors of another encoder, by the fingerprints."""
    if given != wanted:
        raise UsageError(
            f"{name} comes from encoder {given[:12]}, {other} from {wanted[:12]}: their vectors cannot be compared;"
            " embed the sentences again"
        )
