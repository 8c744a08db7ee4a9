"""``pc.embed_dataset``: the same kind of data set with a column of vectors, whatever its library."""

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pytest

import promptcli as pc
from promptcli.errors import UsageError
from tests.embed_fakes import FakeEncoder, vector

TEXTS = ["one", "two", "three"]
TABLE = pa.table({"text": TEXTS, "n": [1, 2, 3]})
READER = pa.RecordBatchReader
KINDS = {
    "table": (lambda: TABLE, lambda made: made),
    "reader": (lambda: READER.from_batches(TABLE.schema, TABLE.to_batches(max_chunksize=2)), READER.read_all),
    "dataset": (lambda: pads.dataset(TABLE), lambda made: made.to_table()),
    "hugging face": (lambda: datasets.Dataset(TABLE), lambda made: made.data.table),
    "a stream": (lambda: datasets.Dataset(TABLE).to_iterable_dataset(), lambda made: pa.Table.from_pylist([*made])),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_more(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    make, table = KINDS[kind]
    given = make()
    made = pc.embed_dataset(given, FakeEncoder())
    assert type(made).__mro__[-2] is type(given).__mro__[-2]
    found = table(made)
    assert found.column_names == ["text", "n", "embedding"] and found["n"].to_pylist() == [1, 2, 3]
    assert np.array_equal(np.array(found["embedding"].to_pylist(), np.float32), np.stack([vector(x) for x in TEXTS]))


def test_columns_by_name():
    made = pc.embed_dataset(TABLE.rename_columns(["words", "n"]), FakeEncoder(), text_field="words", column="v")
    assert made.schema.field("v").type == pa.list_(pa.float32(), 8)


@pytest.mark.parametrize(
    ("given", "options", "said"),
    [
        ([1], {}, "list is no data set; give one of: pyarrow, datasets, ray"),
        (TABLE, {"column": "n"}, "has a column 'n'"),
        (TABLE, {"text_field": "m"}, "is not a column"),
        (TABLE, {"text_field": "n"}, "sentence 0 is int"),
    ],
)
def test_what_is_refused(given, options, said):
    with pytest.raises(UsageError, match=said):
        pc.embed_dataset(given, FakeEncoder(), **options)
