"""A column of vectors for data sets of other libraries; plug-ins add libraries."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.dataset

from promptcli.data.arguments import as_texts
from promptcli.data.cells import is_missing
from promptcli.embedding.parts import portable_choice
from promptcli.embedding.writing import WINDOW
from promptcli.encoder.encoder import TorchEncoder
from promptcli.errors import UsageError
from promptcli.extensions import Table
from promptcli.models import loading
from promptcli.notes import is_offline, without_network
from promptcli.recipe import ModelChoice


@dataclass(frozen=True)
class VectorColumn:
    """A column of vectors that is added to a data set."""

    model: loading.Model
    text: str  #: the column of the sentences
    name: str
    offline: bool = False
    window: ClassVar[int] = WINDOW  #: rows that are encoded at once

    @property
    def device(self) -> str:
        """The device that the user chose, or ``auto``."""
        return self.model.device if isinstance(self.model, ModelChoice) else "auto"

    def open(self) -> "OpenColumn":
        """Return the column with its encoder."""
        with without_network(self.offline):
            return OpenColumn(loading.open_torch_encoder(self.model), self.text, self.name)

    def for_workers(self, device: str) -> "VectorColumn":
        """Return the column for a process with another current folder and device."""
        model = replace(portable_choice(self.model), device=device)
        return replace(self, model=model, offline=is_offline())


@dataclass(frozen=True)
class OpenColumn:
    """A column whose vectors can be computed."""

    encoder: TorchEncoder
    text: str
    name: str

    def encode(self, sentences: Sequence[Any]) -> np.ndarray:
        """Return the vectors (n, d) of sentences; a missing sentence counts as blank, as in a
        file.
        """
        texts = ["" if is_missing(value) else value for value in sentences]
        return self.encoder.encode(as_texts(texts))

    def add_to_table(self, table: Any) -> Any:
        """Return an Arrow table or batch with the column, ``fixed_size_list<float>[d]``."""
        numbers = pa.array(self.encode(table.column(self.text).to_pylist()).reshape(-1))
        vectors = pa.FixedSizeListArray.from_arrays(numbers, self.encoder.width)
        return table.append_column(self.name, vectors)


class DataSets(Protocol):
    """The data sets of a library."""

    def columns(self, dataset: Any) -> list[str]:
        """Return the names of the columns."""

    def add(self, dataset: Any, column: VectorColumn) -> Any:
        """Return a data set of the same kind with one more column."""


class ArrowData:
    """Arrow's data sets; a table gives a table, the others a reader that encodes while it is
    read.
    """

    def columns(self, dataset: Any) -> list[str]:
        if not isinstance(dataset, pa.Table | pa.RecordBatchReader | pyarrow.dataset.Dataset):
            kind = type(dataset).__name__
            raise UsageError(
                f"a pyarrow.{kind} is not a data set; give a Table or RecordBatchReader"
            )
        return list(dataset.schema.names)

    def add(self, dataset: Any, column: VectorColumn) -> Any:
        opened = column.open()
        if isinstance(dataset, pa.Table):
            reader = dataset.combine_chunks().to_reader()
        elif isinstance(dataset, pa.RecordBatchReader):
            reader = dataset
        else:
            reader = dataset.scanner().to_reader()
        vectors = pa.field(column.name, pa.list_(pa.float32(), opened.encoder.width))
        batches = (
            opened.add_to_table(batch.slice(start, WINDOW))
            for batch in reader
            for start in range(0, len(batch), WINDOW)
        )
        encoded = pa.RecordBatchReader.from_batches(reader.schema.append(vectors), batches)
        return encoded.read_all() if isinstance(dataset, pa.Table) else encoded


class HuggingFaceData:
    """The data sets of Hugging Face; a stream stays a stream."""

    def columns(self, dataset: Any) -> list[str]:
        names = dataset.column_names
        if isinstance(names, dict):
            raise UsageError(
                f"the data set has the splits {', '.join(names)}; give one, e.g."
                f" dataset[{next(iter(names), 'train')!r}]"
            )
        if names is None:  # only the first row of a stream tells the names
            names = next(iter(dataset), {})
        return list(names)

    def add(self, dataset: Any, column: VectorColumn) -> Any:
        opened = column.open()

        def vectors(batch: Any) -> dict[str, Any]:
            return {column.name: opened.encode(list(batch[column.text]))}

        options: dict[str, Any] = {}
        # without a new fingerprint, the library would pickle the encoder for its cache
        if hasattr(dataset, "_fingerprint"):
            encoder = opened.encoder
            inputs = (dataset._fingerprint, encoder.fingerprint, encoder.provenance, column.text)
            digest = hashlib.sha256(f"{inputs} {column.name}".encode()).hexdigest()
            options["new_fingerprint"] = digest[:16]
        return dataset.map(vectors, batched=True, batch_size=WINDOW, **options)


#: Library -> its data sets.
DATA_SETS = Table[DataSets](
    "datasets",
    {"pyarrow": ArrowData(), "datasets": HuggingFaceData()},
)
