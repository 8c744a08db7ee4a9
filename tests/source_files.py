"""For tests: write a source of sentences, read it, and see how it fails."""

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from promptcli.data.layouts import ColumnChoice
from promptcli.data.rows import ROW, open_rows
from promptcli.errors import UsageError


def read(path, text=None, identifier=None, stdin=None):
    with open_rows(
        Path(path) if stdin is None else io.BytesIO(stdin),
        ColumnChoice(text, identifier),
    ) as source:
        batches = list(source)
    return [(row["id"], row["text"]) for batch in batches for row in records(batch)]


def texts(path, *args, **kwargs):
    return [text for _, text in read(path, *args, **kwargs)]


def records(batch):
    """Return the rows of a batch, each with its columns."""
    columns = {name: values for name, values in batch.items() if name != ROW}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def batch(texts, ids=None):
    """Return sentences as the reader yields them."""
    return {"text": list(texts), "id": list(ids or range(len(texts)))}


def write(folder, name, content):
    path = folder / name
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def assert_unreadable(path, *parts, error=UsageError, **kwargs):
    """Assert that reading fails with one line that holds every part."""
    with pytest.raises(error) as caught:
        read(path, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def write_parquet(folder, columns, name="a.parquet", **options):
    path = folder / name
    pq.write_table(pa.table(columns), path, **options)
    return path


def write_table(path, names, rows):
    """Write rows in the format of the path's extension."""
    rows = list(rows)
    records = [dict(zip(names, row, strict=True)) for row in rows]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    elif path.suffix == ".tsv":
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [names, *rows]))
    else:
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([names, *rows])
    return path
