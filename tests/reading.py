"""For tests: write a source of sentences, read it, and see how it fails."""

import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from promptcli.data.tables import Fields
from promptcli.data.text import open_source
from promptcli.errors import UsageError


def read(path, text=None, identifier=None, stdin=None):
    with open_source(
        Path(path), Fields(text, identifier), stdin=None if stdin is None else io.BytesIO(stdin)
    ) as source:
        return list(source)


def texts(path, *args, **kwargs):
    return [record.text for record in read(path, *args, **kwargs)]


def write(folder, name, content):
    path = folder / name
    data = content if isinstance(content, bytes) else content.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def fails(path, *parts, error=UsageError, **kwargs):
    """Assert that reading fails with one line that holds every part."""
    with pytest.raises(error) as caught:
        read(path, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def parquet(folder, columns, name="a.parquet", **options):
    path = folder / name
    pq.write_table(pa.table(columns), path, **options)
    return path
