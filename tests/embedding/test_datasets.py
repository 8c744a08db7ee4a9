"""One more column in the data sets of other libraries; those of Ray are in test_ray.py."""

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

import promptcli as pc
from promptcli.embedding import datasets as adding
from promptcli.models import loading
from tests.comparing import refusal
from tests.fake_encoder import FakeEncoder, vector

WORDS = ["one", None, "three"]
TABLE = pa.table({"text": WORDS, "n": [1, 2, 3]})


def reader():
    return pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches(max_chunksize=2))


def stream():
    return datasets.Dataset(TABLE).to_iterable_dataset()


def nameless():
    """Return a stream that does not know its columns."""
    return datasets.IterableDataset.from_generator(TABLE.to_pylist().__iter__)


#: Kind of data set -> how it is made, the class of the result, and how its rows are read.
KINDS = {
    "table": (lambda: TABLE, pa.Table, pa.Table.to_pylist),
    "reader": (reader, pa.RecordBatchReader, lambda made: made.read_all().to_pylist()),
    "dataset": (
        lambda: pads.dataset(TABLE),
        pa.RecordBatchReader,
        lambda made: made.read_all().to_pylist(),
    ),
    "hugging face": (lambda: datasets.Dataset(TABLE), datasets.Dataset, list),
    "stream": (stream, datasets.IterableDataset, list),
    "nameless": (nameless, datasets.IterableDataset, list),
}


@pytest.fixture(autouse=True)
def opened(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    encoder = FakeEncoder()
    monkeypatch.setattr(loading, "open_torch_encoder", lambda model: encoder)
    return encoder


@pytest.mark.parametrize("kind", KINDS)
def test_a_data_set_gets_one_column_more(kind):
    make, wanted, read = KINDS[kind]
    made = pc.embed_dataset(make())
    assert isinstance(made, wanted)
    rows = read(made)
    assert [list(row) for row in rows] == [["text", "n", "embedding"]] * 3
    assert [(row["text"], row["n"]) for row in rows] == list(zip(WORDS, [1, 2, 3], strict=True))
    vectors = np.array([row["embedding"] for row in rows], np.float32)
    assert np.array_equal(vectors, np.stack([vector(word or "") for word in WORDS]))


def test_a_reader_is_encoded_while_it_is_read(monkeypatch, opened):
    monkeypatch.setattr(adding, "WINDOW", 2)
    taken = []

    def batches():
        for number in range(3):
            taken.append(number)
            yield pa.record_batch({"text": ["a", "b"]})

    schema = pa.schema({"text": pa.string()})
    made = pc.embed_dataset(pa.RecordBatchReader.from_batches(schema, batches()))
    assert (taken, opened.calls) == ([], [])
    assert len(made.read_next_batch()) == 2
    assert (taken, opened.calls) == ([0], [2])


def test_a_column_is_taken_by_its_name():
    table = TABLE.rename_columns(["words", "n"])
    made = pc.embed_dataset(table, text_field="words", column="v")
    assert made.schema.field("v").type == pa.list_(pa.float32(), 8)


def test_a_data_set_that_is_embedded_again_is_not_encoded_again(tmp_path, opened):
    datasets.Dataset(TABLE).save_to_disk(tmp_path / "kept")
    for _ in range(2):
        pc.embed_dataset(datasets.load_from_disk(tmp_path / "kept"))
        assert sum(opened.calls) == 3
    pc.embed_dataset(datasets.load_from_disk(tmp_path / "kept"), column="other")
    assert sum(opened.calls) == 6


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ([1], {}, "list is not a supported data set; give a ray"),
        (pa.array(["a"]), {}, r"a pyarrow\.StringArray is not a data set"),
        (datasets.DatasetDict(test=datasets.Dataset(TABLE)), {}, r"the splits test; give .*'test'"),
        (TABLE, {"column": "n"}, "column: the data set has a column 'n'; give another name"),
        (TABLE, {"text_field": "m"}, "'m': no column|no column 'm'"),
        (TABLE, {"text_field": "n"}, "sentence 0 is int"),
        (datasets.Dataset(TABLE), {"text_field": "n"}, "sentence 0 is int"),
    ],
)
def test_a_data_set_without_texts_is_refused(given, options, said):
    with refusal(said):
        pc.embed_dataset(given, **options)
