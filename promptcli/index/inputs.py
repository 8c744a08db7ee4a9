"""The rows that go into an index, and its queries: sentences encoded window by window, or stored
vectors.

And the encoder that they come from: remembered at the build, made again for a search, compared with
others.
"""

import contextlib
import functools
import itertools
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa

from promptcli.data.bad_lines import REFUSED, BadRows
from promptcli.data.cells import cells_array
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.given import check_encodable
from promptcli.data.input_files import STANDARD
from promptcli.data.layouts import CELLS, ID, TEXT
from promptcli.data.parquet_files import RecordBatch
from promptcli.data.row_batches import BATCH, windows
from promptcli.data.row_batches import Rows as FileOfRows
from promptcli.data.rows import open_rows
from promptcli.data.vectors import (
    Manifest,
    VectorManifest,
    escape_name,
    holds_vectors,
    names_apart,
    read_vectors,
)
from promptcli.data.vectors.formats import ParquetRows, open_sink
from promptcli.data.vectors.part_folder import PartFolder, is_part_folder
from promptcli.data.vectors.precision import PRECISIONS
from promptcli.embedding.passages import AUTO, WAYS, Passage, has_passages, passages_of
from promptcli.embedding.splitting import Splitter
from promptcli.embedding.writing import WINDOW_CHARACTERS, embed_stream
from promptcli.errors import (
    CheckFailedError,
    NotFoundError,
    PromptcliError,
    UsageError,
    counted,
    unknown,
)
from promptcli.index.array_rows import ArrayRows, IndexRows
from promptcli.index.file_rows import place_cells, place_ids
from promptcli.index.stored import Origin, Reading
from promptcli.models import loading as encoders
from promptcli.models.entries import TENSORS, Entry
from promptcli.models.language_choice import model_for
from promptcli.models.registry import Registry, portable
from promptcli.notes import bars_shown, keyword, note, note_counts, stage
from promptcli.recipe import Choice, Recipe, is_named
from promptcli.storage.files import real_path

if TYPE_CHECKING:
    from promptcli.encoder.sentence_encoder import Encoder
    from promptcli.models.loading import Model

#: Queries encoded and searched at once.
_WINDOW = 1024

#: Makes an encoder for texts that begin so, after the input was checked, and returns the model that
#: was chosen.
Opener = Callable[[list[str]], "tuple[Encoder, Model | None]"]


@dataclass(frozen=True)
class RowFiles:
    """The file that the rows of an index come from: sentences as for ``embed``, or vectors."""

    source: str | Path | BinaryIO
    fields: ColumnChoice
    near: Path | None  #: encoded rows wait on its disk; None: in the system's own place
    split: bool = False
    rows: str = AUTO  #: of a text, one of ``passages.WAYS``
    bad: BadRows = REFUSED  #: gets the rows that cannot be read

    def with_bad(self, bad: BadRows) -> "RowFiles":
        """Return the file with another taker of the rows that cannot be read."""
        return replace(self, bad=bad)

    def __post_init__(self) -> None:
        if self.rows not in WAYS:
            raise unknown("rows", self.rows, WAYS)

    @property
    def file(self) -> Path:
        if isinstance(self.source, str | Path):
            return Path(self.source)
        return STANDARD

    @property
    def are_vectors(self) -> bool:
        """Whether ``file`` holds vectors."""
        if self.file.is_dir():
            return is_part_folder(self.file) or any(
                path.suffix == ".parquet" for path in self.file.iterdir()
            )
        return self.file != STANDARD and holds_vectors(self.file)

    def encode(
        self,
        opener: Opener,
        *,
        plain: bool = False,
        check: Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]] = iter,
    ) -> tuple[IndexRows, Origin, Reading]:
        """Return the rows of a file of sentences, encoded, the model that they come from, and how
        they were read.

        ``plain``: without the prompt for documents. ``check`` passes the batches on, or refuses
        them.
        """
        with self._open(opener, plain=plain) as opened:
            source = opened.source
            reading = Reading(
                self.rows, source.columns[TEXT] or None, self.fields.id or source.columns.get(ID)
            )
            rows = spool(opened.documents, check(opened.batches), self.near, opened.total)
            rows.converts = source.forms.decide()
            for doubt in source.forms.doubts.values():
                note(f"{source.name}: {doubt}")
            return rows, origin_of(opened.encoder, opened.documents, opened.model), reading

    def encode_rest(
        self,
        opener: Opener,
        *,
        plain: bool,
        check: Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]],
    ) -> ParquetRows | None:
        """Return the rows that ``check`` passes on, encoded; None if it passes none on."""
        with self._open(opener, plain=plain) as opened:
            rest = check(opened.batches)
            first = next(rest, None)
            if first is None:
                return None
            batches = itertools.chain([first], rest)
            return spool(opened.documents, batches, self.near, opened.total, "embed")

    @contextlib.contextmanager
    def _open(self, opener: Opener, *, plain: bool) -> "Iterator[_OpenedRows]":
        """Open a file of sentences and its encoder."""
        stdin = None if isinstance(self.source, str | Path) else self.source
        fields = replace(self.fields, cells=True)
        with open_rows(self.file, fields, stdin=stdin, bad=self.bad) as source:
            source, head = source.peek()
            encoder, model = opener(head)
            if plain:
                documents = encoder
            else:
                documents = encoder.in_role("document", report=True)
            batches = iter(source)
            total = source.total() if bars_shown() else None
            if source.is_text:
                batches = self._of_text(source, documents)
                total = None
            elif self.split:
                batches = Splitter(documents).batches(source)
                total = None
            yield _OpenedRows(source, batches, total, encoder, documents, model)

    def _of_text(self, source: FileOfRows, documents: "Encoder") -> Iterator[RecordBatch]:
        """Yield batches of the passages of a text, or of its lines."""
        first = next(source.batches)
        head = first.column(TEXT).to_pylist()
        batches = itertools.chain([first], source.batches)
        if has_passages(head, self.file, self.rows):
            lines = (line for batch in batches for line in batch.column(TEXT).to_pylist())
            yield from _passage_batches(
                escape_name(str(self.file)), passages_of(lines, head, self.file, documents)
            )
        else:
            yield from Splitter(documents).batches(batches) if self.split else batches

    def open_stored(self, origin: Origin | None = None) -> tuple[IndexRows, Origin | None]:
        """Return the rows of vectors and their encoder, None if unknown; with ``origin`` it must be
        that.
        """
        if self.fields.text or self.fields.id:
            raise UsageError(
                f"{keyword('text_field')} and {keyword('id_field')} are for sentences, and"
                f" {self.file} holds vectors"
            )
        rows: IndexRows
        manifest: Manifest | None
        if is_part_folder(self.file):
            parts = PartFolder(self.file)
            rows = parts
            manifest = parts.manifest
        elif self.file.is_dir():
            inside = (
                path
                for path in self.file.iterdir()
                if path.suffix == ".parquet" and path.name[0] not in "._"
            )
            rows = ParquetRows(sorted(inside))
            manifest = None
        else:
            vectors = read_vectors(self.file)
            if PRECISIONS[vectors.precision].packed:
                allowed = f"{keyword('precision')} float32, float16 or int8"
                raise UsageError(f"{self.file} holds binary vectors; embed again with {allowed}")
            manifest = vectors.manifest
            if vectors.texts is None:
                blank = _blank_rows(self.file, vectors.manifest)
            else:
                blank = ()
            rows = ArrayRows(vectors.matrix, vectors.ids, vectors.texts, blank=blank)
        made_by = None
        if manifest is not None:
            recipe = portable(Recipe.from_dict(manifest.recipe)).to_dict()
            made_by = Origin(
                manifest.fingerprint,
                recipe,
                None,
                manifest.model,
                manifest.prompts,
                name=manifest.name,
            )
        if origin is not None:
            if made_by is None:
                raise UsageError(
                    f"{self.file} has no manifest, so its encoder is unknown; embed the sentences"
                    " again"
                )
            if made_by.fingerprint != origin.fingerprint:
                given, wanted = names_of_two(made_by, origin)
                problem = f"{self.file} was made with {given}, and the index with {wanted}"
                raise UsageError(f"{problem}; embed the sentences again with {wanted}")
        return rows, made_by


@dataclass(frozen=True)
class _OpenedRows:
    """An open file of sentences, and the encoder of its rows."""

    source: FileOfRows
    batches: Iterator[RecordBatch]  #: its rows, or their parts
    total: int | None  #: about how many they are, if that is shown
    encoder: "Encoder"
    documents: "Encoder"  #: the same in the role of the rows
    model: "Model | None"  #: what was chosen


def _blank_rows(file: Path, manifest: VectorManifest | None) -> Sequence[Sequence[int]]:
    """Return the runs of rows of a file without texts that had a blank text."""
    if manifest is None:
        return ()
    report = manifest.report
    if report.blank_rows is None and report.blank:
        note(
            f"{file}: {counted(report.blank, 'row')} had a blank text, but which is not known;"
            " embed it again"
        )
    return report.blank_rows or ()


def spool(
    documents: "Encoder",
    batches: Iterable[RecordBatch],
    near: Path | None,
    total: int | None,
    label: str = "index",
) -> ParquetRows:
    """Encode batches window by window into a nameless file on the disk of the index ``near``, or in
    the system's own place.

    ``label`` is shown beside the progress.
    """
    place = None
    if near is not None:
        place = next((folder for folder in real_path(near).parents if folder.is_dir()), None)
    with stage(label, total) as advance:
        spool = cast(BinaryIO, tempfile.TemporaryFile(dir=place))
        with open_sink(spool, ".parquet", documents.width) as sink:
            report = embed_stream(documents, batches, sink, progress=advance)
    note_counts(report.rows, blank=0, truncated=report.truncated)
    return ParquetRows({Path("the rows"): spool})


def _passage_batches(file: str, passages: Iterator[Passage]) -> Iterator[RecordBatch]:
    """Yield batches of passages with their ids and columns."""
    given = dict[str, int]()
    while block := list(itertools.islice(passages, BATCH)):
        yield pa.record_batch(
            {
                TEXT: pa.array([passage.text for passage in block], pa.string()),
                ID: pa.array(place_ids(file, block, given), pa.string()),
                CELLS: cells_array([place_cells(file, passage) for passage in block]),
            }
        )


def _open_for(model: "Model", texts: list[str]) -> "tuple[Encoder, Model]":
    """Return the encoder of a model, or of the one for the texts' language, and that model."""
    chosen = model_for(model, texts)
    return encoders.open_encoder(chosen, dtype="auto"), chosen


def rows_to_build(files: RowFiles, model: "Model") -> tuple[IndexRows, Origin, Reading]:
    """Return the rows of a new index, the encoder they come from, and how files are read.

    For vectors whose manifest tells it, the encoder is not opened, unless the user named one.
    """
    if not files.are_vectors:
        return files.encode(functools.partial(_open_for, model))
    rows, origin = files.open_stored()
    if is_named(model):
        encoder = encoders.open_encoder(model, dtype="auto")
        documents = encoder.in_role("document", report=origin is None)
        if origin is not None:
            documents = documents if documents.fingerprint == origin.fingerprint else encoder
            if origin.fingerprint != documents.fingerprint:
                made_by, given = names_of_two(origin, origin_of(encoder, documents, model))
                raise UsageError(
                    f"{files.file} was made with {made_by}, not with {given}; leave out"
                    f" {keyword('model')}"
                )
        if rows.shape[1] != encoder.width:
            raise UsageError(
                f"{files.file}: vectors of width {rows.shape[1]}, but the encoder's are"
                f" {encoder.width}"
            )
        origin = origin_of(encoder, documents, model)
    if origin is None:
        raise UsageError(
            f"{files.file} has no manifest, so its encoder is unknown; give its name as"
            f" {keyword('model')}"
        )
    text = origin.prompts.texts.get(origin.prompts.name_for("document") or "")
    if origin.prompt is None and text and text != origin.prompts.default_text:
        note(
            f"{files.file} was made without the model's prompt for documents, {text!r}; an index of"
            " sentences uses it"
        )
    return rows, origin, Reading(files.rows)


@contextlib.contextmanager
def open_queries(
    query: str | Path | BinaryIO | Sequence[str], text_field: str | None
) -> Iterator[Iterator[list[str]]]:
    """Yield the windows of a list of queries, or of the sentences of a file."""
    path, stdin = (Path(query), None) if isinstance(query, str | Path) else (STANDARD, query)
    if isinstance(stdin, Sequence):
        for sentence in stdin:
            if not sentence.strip():
                raise UsageError("the query is empty; give a sentence, or a file of them")
            check_encodable(sentence)
        yield iter([list(stdin)])
        return
    if stdin is None and path != STANDARD and holds_vectors(path):
        raise UsageError(
            f"{path} holds vectors, and queries are sentences; give the file that they were made"
            " from"
        )
    with open_rows(path, ColumnChoice(text_field), stdin=stdin) as source:
        yield (
            window.column("text").to_pylist()
            for window in windows(source, _WINDOW, WINDOW_CHARACTERS)
        )


def origin_of(encoder: "Encoder", documents: "Encoder", model: "Model | None" = None) -> Origin:
    """Return what an index remembers of a model, which ``model`` named, and of its encoder in the
    role of the rows.
    """
    word = model.model if isinstance(model, Choice) else model
    entry = None
    if isinstance(word, str) and encoder.tensors():  # the registry holds its fitted tensors
        entry = word if word in encoders.open_registry().names() else None
    prompt = None
    if documents is not encoder:
        prompt = encoder.leading.name_for("document")
    recipe = portable(encoder.recipe).to_dict()
    return Origin(
        documents.fingerprint,
        recipe,
        entry,
        encoder.provenance,
        encoder.leading,
        prompt,
        encoder.name,
    )


def documents_of(origin: Origin, encoder: "Encoder") -> "Encoder":
    """Return a model in the role of the rows of an index."""
    if origin.prompt is None:
        return encoder
    return encoder.in_role("document")


def missing_model(origin: Origin) -> str | None:
    """Return the model of an index if it was removed or moved."""
    if origin.model is not None:
        return None if origin.model in encoders.open_registry().names() else origin.model
    folder = str(origin.recipe["backbone"])
    return folder if os.path.isabs(folder) and not os.path.exists(folder) else None


def encoder_of(origin: Origin, model: "Model | None" = None) -> "Encoder":
    """Return the model of an index: ``model``, if it is named, else made again from what the index
    remembers.
    """
    dtype = str(origin.provenance.get("dtype", "auto"))
    if model is not None and is_named(model):
        encoder = encoders.open_encoder(model, dtype=dtype)
        documents = documents_of(origin, encoder)
        if documents.fingerprint != origin.fingerprint:
            built, given = names_of_two(origin, origin_of(encoder, documents, model))
            problem = f"the index was built with {built}, not with {given}"
            raise UsageError(
                f"{problem}; leave out {keyword('model')}, or build the index again with {given}"
            )
        return encoder
    if (name := missing_model(origin)) is not None:
        raise NotFoundError(
            f"the index comes from {name}, which was removed or moved; name that model as"
            f" {keyword('model')}"
        )
    device = model.device if isinstance(model, Choice) else "auto"
    registry = encoders.open_registry()
    recipe = Recipe.from_dict(origin.recipe)
    if origin.model is not None:
        entries = [replace(registry.load(origin.model), recipe=recipe)]
    else:
        entries = [
            *_fitted_models(registry, origin.recipe),
            Entry("recipe", recipe, prompts=origin.prompts),
        ]
    for entry in entries:
        try:
            encoder = encoders.open_encoder(entry, device=device, dtype=dtype)
        except UsageError as error:
            if origin.model is not None:
                raise
            raise UsageError(
                f"{error}; build the index again with the {keyword('model')} that made its vectors"
            ) from None
        if documents_of(origin, encoder).fingerprint == origin.fingerprint:
            return encoder
    model = origin.name or f"the model on {origin.recipe['backbone']}"
    raise CheckFailedError(
        f"{model} has changed since the index was built with it; build the index again"
    )


def _fitted_models(registry: Registry, recipe: dict[str, Any]) -> Iterator[Entry]:
    """Yield the models of a recipe that hold fitted tensors: nothing else tells which one made
    stored vectors.
    """
    for name in registry.names():
        with contextlib.suppress(PromptcliError):  # a damaged one made none
            card = registry.card(name)
            if TENSORS in card.files and portable(card.recipe).to_dict() == recipe:
                yield registry.load(name)


def names_of_two(one: Origin, other: Origin) -> tuple[str, str]:
    """Return what to call two models in a message."""
    return names_apart((one.name, one.fingerprint), (other.name, other.fingerprint))
