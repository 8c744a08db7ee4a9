"""A column of vectors for a data set: Hugging Face or Arrow in, the same kind out."""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from promptcli.data.dialect import Fields
from promptcli.data.given import check_texts
from promptcli.data.vectors.formats import COLUMN
from promptcli.embedding.writing import WINDOW
from promptcli.encoder.encoder import Encoder
from promptcli.errors import UsageError

#: Of one of the ``LIBRARIES``.
Dataset = TypeVar("Dataset")


def embed_dataset(
    dataset: Dataset, encoder: Encoder, *, text_field: str | None = None, column: str = COLUMN
) -> Dataset:
    """Return a data set with the vectors of its sentences as one more column, float32.

    Args:
        dataset: A ``datasets.Dataset`` or ``IterableDataset``, a ``pyarrow.Table``, ``RecordBatchReader`` or
            ``pyarrow.dataset.Dataset``. What streams stays a stream; of ``pyarrow.dataset.Dataset`` the result is in
            memory.
        encoder: The encoder.
        text_field: Column of the sentence; ``text``, else ``sentence``, else the only one.
        column: Name of the new column.

    Raises:
        UsageError: Another kind of thing, no such column, or one of the new name that is there already.

    Example:
        >>> import pyarrow as pa
        >>> import promptcli as pc
        >>> pc.embed_dataset(pa.table({"text": ["A cat sleeps."]}), pc.load("mini")).column_names
        ['text', 'embedding']
    """
    library = type(dataset).__module__.partition(".")[0]
    if library not in LIBRARIES:
        given = type(dataset).__name__
        raise UsageError(f"{given} is no data set; give one of: {', '.join(LIBRARIES)}")
    names, embed = LIBRARIES[library]
    columns = names(dataset)
    if column in columns:
        raise UsageError(f"the data set has a column {column!r}; give column=, the name of the new one")
    text = Fields(text_field).choose(columns, "the data set")["text"]
    embedded: Dataset = embed(dataset, encoder, text, column)
    return embedded


def _add_vectors(table: Any, encoder: Encoder, text: str, column: str) -> Any:
    """Return an Arrow table or batch with a column of vectors more, fixed_size_list<float>[d]."""
    import pyarrow as pa

    vectors = encoder.encode(check_texts(table.column(text).to_pylist()))
    return table.append_column(column, pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), encoder.width))


def _embed_arrow(dataset: Any, encoder: Encoder, text: str, column: str) -> Any:
    import pyarrow as pa
    import pyarrow.dataset as pads

    if isinstance(dataset, pa.Table):
        return _add_vectors(dataset, encoder, text, column)
    reader = dataset if isinstance(dataset, pa.RecordBatchReader) else dataset.scanner(batch_size=WINDOW).to_reader()

    def batches() -> Iterator[Any]:
        for batch in reader:
            yield from _add_vectors(pa.Table.from_batches([batch]), encoder, text, column).to_batches()

    schema = reader.schema.append(pa.field(column, pa.list_(pa.float32(), encoder.width)))
    made = pa.RecordBatchReader.from_batches(schema, batches())
    return made if isinstance(dataset, pa.RecordBatchReader) else pads.dataset(made.read_all())


def _embed_hugging_face(dataset: Any, encoder: Encoder, text: str, column: str) -> Any:
    def vectors(batch: Any) -> dict[str, Any]:
        return {column: encoder.encode(check_texts(list(batch[text])))}

    named: dict[str, Any] = {}
    if hasattr(dataset, "_fingerprint"):  # else the encoder would be pickled for it
        known = f"{dataset._fingerprint} {encoder.fingerprint} {encoder.provenance} {text} {column}"
        named = {"new_fingerprint": hashlib.sha256(known.encode()).hexdigest()[:16]}
    return dataset.map(vectors, batched=True, batch_size=WINDOW, **named)


#: Of each library the columns' names of its data sets, and how they are embedded.
LIBRARIES: dict[str, tuple[Callable[[Any], list[str]], Callable[[Any, Encoder, str, str], Any]]] = {
    "pyarrow": (lambda dataset: list(dataset.schema.names), _embed_arrow),
    "datasets": (lambda dataset: list(dataset.column_names or next(iter(dataset))), _embed_hugging_face),
}
