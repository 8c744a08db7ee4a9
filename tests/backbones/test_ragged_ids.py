"""Rows of token ids in one array: each operation beside the same on lists."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from promptcli.backbones.ragged_ids import RaggedIds

ROWS = st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=8)
COUNTS = st.lists(st.integers(0, 6), min_size=8, max_size=8)


@settings(max_examples=200)
@given(rows=ROWS, counts=COUNTS)
def test_what_is_taken_from_rows_is_what_is_taken_from_lists(rows, counts):
    held = RaggedIds.of(rows)
    counts = [min(count, len(row)) for row, count in zip(rows, counts, strict=False)]
    numbers = np.array(counts, np.int64)
    assert list(held) == rows and [held[place] for place in range(len(held))] == rows
    assert held.take(np.arange(len(rows))[::2]) == rows[::2]
    assert held.slice_rows(slice(1, -1)) == [row[1:-1] for row in rows]
    assert held.slice_rows(slice(None)) == rows
    first = held.take_ranges(held.starts, numbers)
    assert first == [row[:k] for row, k in zip(rows, counts, strict=True)]
    last = held.take_ranges(held.starts + held.lengths - numbers, numbers)
    assert last == [row[len(row) - k :] for row, k in zip(rows, counts, strict=True)]
    assert held.remove(3) == [[token for token in row if token != 3] for row in rows]
    assert held.fill_empty(7) == [row or [7] for row in rows]
    assert held.to_bytes() == [np.array(row, np.intc).tobytes() for row in rows]


@settings(max_examples=200)
@given(rows=ROWS)
def test_rows_are_put_together_as_lists_are(rows):
    held = RaggedIds.of(rows)
    assert RaggedIds.join([held, held]) == rows + rows
    assert RaggedIds.join([]) == []
    assert RaggedIds.join_rows([held, held]) == [row + row for row in rows]
    assert held.surround([8], [7, 7]) == [[8, *row, 7, 7] for row in rows]
    assert held.surround([], []) == rows and held.surround([8], []) == [[8, *row] for row in rows]
    assert RaggedIds.repeat([1, 2], held.lengths) == [[1, 2] * len(row) for row in rows]
    ended = [token for row in rows for token in (*row, -1)]
    assert RaggedIds.split_at(-1, np.array(ended, np.intc)) == rows


@settings(max_examples=100)
@given(rows=ROWS.filter(len))
def test_a_matrix_has_each_row_and_padding_after_it(rows):
    width = max(map(len, rows))
    matrix = RaggedIds.of(rows).to_matrix(width, 99)
    assert matrix.dtype == np.int64
    assert matrix.tolist() == [row + [99] * (width - len(row)) for row in rows]
