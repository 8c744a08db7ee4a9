"""The vectors of an index, in memory and in a file."""

import numpy as np
import pytest

from promptcli.retrieval.array_files import VectorFile


@pytest.mark.parametrize("in_memory", [True, False])
def test_vectors_are_read_as_they_were_written_last(in_memory, tmp_path):
    vectors = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    file = VectorFile.new(None if in_memory else tmp_path, "float32")
    for place, vector in enumerate(vectors):
        file.write(place, vector[None])
    before = file.read(30, 3)
    assert np.array_equal(file.read(40, 3), vectors)
    file.write(30, -vectors[:5])  # the change that wrote the last ten was undone
    assert np.array_equal(file.read(35, 3), np.concatenate([vectors[:30], -vectors[:5]]))
    assert np.array_equal(before, vectors[:30])
