"""A column of vectors for the data sets of other libraries: Arrow, Hugging Face and Ray."""

import functools
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.dataset

from promptcli.data.cells import column_texts
from promptcli.data.column_choice import ColumnChoice
from promptcli.data.layouts import TEXT
from promptcli.data.rows import windows
from promptcli.embedding.parts import wanted_device, with_absolute_backbone
from promptcli.embedding.writing import WINDOW, WINDOW_CHARACTERS
from promptcli.encoder.encoder import TorchEncoder
from promptcli.encoder.sentence_encoder import Encoder
from promptcli.errors import UsageError
from promptcli.models import loading
from promptcli.notes import is_offline, without_network
from promptcli.recipe import Choice


@dataclass(frozen=True)
class _Addition:
    """What is added to a data set."""

    model: loading.Model
    text: str  #: the column of the sentences
    column: str  #: the new one


def embed_dataset(
    dataset: Any, model: loading.Model, *, text_field: str | None, column: str
) -> Any:
    """Return a data set with a column of vectors; see ``promptcli.embed_dataset``."""
    library = type(dataset).__module__.partition(".")[0]
    if library not in _LIBRARIES:
        kinds = "a ray.data.Dataset, a datasets.Dataset or IterableDataset, a pyarrow.Table"
        raise UsageError(
            f"{type(dataset).__name__} is not a data set that is known here; give {kinds} or"
            " RecordBatchReader"
        )
    names_of, embed = _LIBRARIES[library]
    names = names_of(dataset)
    if column in names:
        raise UsageError(f"the data set has a column {column!r}; give another name as `column`")
    text = ColumnChoice(text_field).choose(names, "the data set")[TEXT]
    return embed(dataset, _Addition(model, text, column))


def _texts(values: Sequence[Any], column: str) -> list[str]:
    """Return sentences as texts; a missing one is blank, as in a file."""
    numbers = range(1, len(values) + 1)
    try:
        return column_texts({TEXT: column}, [values], "row of a batch", numbers, blank=True)[TEXT]
    except ValueError as error:
        raise UsageError(f"the data set: {error}") from None


def _with_vectors(table: Any, encoder: TorchEncoder, work: _Addition) -> Any:
    """Return an Arrow table or batch with one more column, ``fixed_size_list<float>[d]``."""
    texts = _texts(table.column(work.text).to_pylist(), work.text)
    numbers = pa.array(encoder.encode(texts).reshape(-1))
    vectors = pa.FixedSizeListArray.from_arrays(numbers, encoder.width)
    return table.append_column(work.column, vectors)


# Arrow


def _arrow_names(dataset: Any) -> list[str]:
    if not isinstance(dataset, pa.Table | pa.RecordBatchReader | pyarrow.dataset.Dataset):
        kind = type(dataset).__name__
        raise UsageError(f"a pyarrow.{kind} is not a data set; give a Table or RecordBatchReader")
    return list(dataset.schema.names)


def _embed_arrow(dataset: Any, work: _Addition) -> Any:
    """Return a table for a table, else a reader that encodes while it is read."""
    encoder = loading.open_model(work.model)
    if isinstance(dataset, pa.Table):
        reader = dataset.to_reader()
    elif isinstance(dataset, pa.RecordBatchReader):
        reader = dataset
    else:
        reader = dataset.scanner().to_reader()
    schema = reader.schema.append(pa.field(work.column, pa.list_(pa.float32(), encoder.width)))
    made = pa.RecordBatchReader.from_batches(schema, _arrow_batches(reader, encoder, work))
    if isinstance(dataset, pa.Table):
        return made.read_all()
    return made


def _arrow_batches(reader: Iterable[Any], encoder: TorchEncoder, work: _Addition) -> Iterator[Any]:
    for batch in windows(reader, WINDOW, WINDOW_CHARACTERS):
        yield _with_vectors(batch, encoder, work)


# Hugging Face


def _hugging_face_names(dataset: Any) -> list[str]:
    names = dataset.column_names
    if isinstance(names, dict):
        raise UsageError(
            f"the data set has the splits {', '.join(names)}; give one, e.g."
            f" dataset[{next(iter(names), 'train')!r}]"
        )
    if names is None:  # a stream knows them from its first row
        return list(next(iter(dataset), {}))
    return list(names)


def _embed_hugging_face(dataset: Any, work: _Addition) -> Any:
    encoder = loading.open_model(work.model)

    def vectors(batch: Any) -> dict[str, Any]:
        return {work.column: encoder.encode(_texts(list(batch[work.text]), work.text))}

    named: dict[str, Any] = {}
    if hasattr(dataset, "_fingerprint"):  # else the encoder would be pickled for its cache
        made_of = (dataset._fingerprint, encoder.fingerprint, encoder.provenance, work.text)
        digest = hashlib.sha256(f"{made_of} {work.column}".encode()).hexdigest()
        named["new_fingerprint"] = digest[:16]
    return dataset.map(vectors, batched=True, batch_size=WINDOW, **named)


# Ray


@dataclass(frozen=True)
class _Adding:
    """What a process of Ray adds to tables: it opens an encoder once."""

    work: _Addition
    options: dict[str, Any]
    offline: bool

    def open(self) -> Callable[[Any], Any]:
        """Return the function that adds vectors to a table."""
        with without_network(self.offline):
            encoder = loading.open_model(self.work.model, **self.options)
        return functools.partial(_with_vectors, encoder=encoder, work=self.work)


def _ray_names(dataset: Any) -> list[str]:
    return list(dataset.columns() or ())


def _embed_ray(dataset: Any, work: _Addition) -> Any:
    import ray.data

    from promptcli.embedding import ray_engine

    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    if wanted_device(work.model) == "cpu":
        gpus = 0
    cpus = int(resources.get("CPU", 1))
    # a CPU stays free for the tasks that read and write, else Ray waits for ever
    actors = gpus or max(1, cpus - 1)
    model, options = _as_entry(work.model)
    options["device"] = "cuda" if gpus else "cpu"
    adding = _Adding(_Addition(model, work.text, work.column), options, is_offline())
    return dataset.map_batches(
        ray_engine.worker_module().Adder,
        # packed, else Ray would open it before the actor begins
        fn_constructor_args=(
            ray_engine.worker_environment(),
            os.getcwd(),
            ray.cloudpickle.dumps(adding),
        ),
        batch_size=WINDOW,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors),
        num_cpus=1 if cpus > 1 else 0,
        num_gpus=1 if gpus else 0,
    )


def _as_entry(model: loading.Model) -> tuple[loading.Model, dict[str, Any]]:
    """Return a model for other processes: an entry, and the options of opening it."""
    options = dict[str, Any]()
    if isinstance(model, Encoder):
        options["dtype"] = model.provenance["dtype"]
        options["backend"] = model.provenance.get("backend", "torch")
    elif isinstance(model, Choice):
        options["dtype"] = model.dtype or "stored"
        options["backend"] = model.backend
    return with_absolute_backbone(loading.entry_of(model)), options


#: Library -> the names of the columns of its data sets, and how one more is added.
_LIBRARIES: dict[str, tuple[Callable[[Any], list[str]], Callable[[Any, _Addition], Any]]] = {
    "pyarrow": (_arrow_names, _embed_arrow),
    "datasets": (_hugging_face_names, _embed_hugging_face),
    "ray": (_ray_names, _embed_ray),
}
