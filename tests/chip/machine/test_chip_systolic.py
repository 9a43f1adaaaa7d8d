"""The systolic array: the same sums as a product of matrices, at the cycles that its text tells, and the same image."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.chip.machine import SystolicArray
from anytpu.errors import ChipError


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.integers(0, 2**32 - 1))
def test_sums_are_those_of_the_product(rows, columns, batch, seed):
    rng = np.random.default_rng(seed)
    array = SystolicArray(rows, columns)
    for _ in range(2):  # a second tile takes the place of the first
        tile = rng.integers(-128, 128, (rows, columns), np.int8)
        numbers = rng.integers(-128, 256, (batch, rows))
        np.testing.assert_array_equal(array.multiply(tile, numbers), numbers @ tile.astype(np.int64))
    assert array.cycles == 2 * (rows + (rows + columns + batch - 2 if batch else 0))


def test_a_full_array_of_256_by_256():
    rng = np.random.default_rng(0)
    tile = rng.integers(-128, 128, (256, 256), np.int8)
    numbers = rng.integers(-128, 128, (5, 256))
    np.testing.assert_array_equal(SystolicArray(256, 256).multiply(tile, numbers), numbers @ tile.astype(np.int64))


def test_each_register_at_each_cycle():
    tile, numbers = np.array([[1, 2, 3], [4, 5, 6]]), np.array([[1, 10], [100, 1000], [7, 8], [9, 11]])
    snapshots = list(SystolicArray(2, 3).snapshots(tile, numbers))
    assert [one.cycle for one in snapshots] == list(range(2 + 2 + 3 + 4 - 2))
    assert [one.shifting for one in snapshots] == [True] * 2 + [False] * 7
    assert snapshots[0].next_weights.tolist() == [[4, 5, 6], [0, 0, 0]]
    assert snapshots[1].next_weights.tolist() == tile.tolist()
    assert not snapshots[1].weights.any()
    for cycle, one in enumerate(snapshots[2:]):
        for i in range(2):
            for j in range(3):
                vector = cycle - i - j
                inside = 0 <= vector < 4
                assert one.vectors[i, j] == (vector if inside else -1)
                assert one.numbers[i, j] == (numbers[vector, i] if inside else 0)
                assert one.sums[i, j] == (numbers[vector, : i + 1] @ tile[: i + 1, j] if inside else 0)
                assert one.weights[i, j] == (tile[i, j] if vector >= 0 else 0)
    leaving = {(vector, column): total for one in snapshots for vector, column, total in one.leaving}
    assert leaving == {(n, j): (numbers @ tile)[n, j] for n in range(4) for j in range(3)}


def test_a_snapshot_stays_as_it_was():
    first, *_, last = SystolicArray(2, 2).snapshots(np.ones((2, 2), int), np.ones((3, 2), int))
    assert first.sums.max() == 0
    assert last.sums.max() == 2


def test_wrong_shapes():
    array = SystolicArray(2, 3)
    with pytest.raises(ChipError) as e:
        array.multiply(np.zeros((3, 2)), np.zeros((1, 2)))
    assert str(e.value) == "A tile of this array is of shape (2, 3), not (3, 2)."
    with pytest.raises(ChipError) as e:
        array.multiply(np.zeros((2, 3)), np.zeros((1, 3)))
    assert str(e.value) == "Vectors of this array are of shape (batch, 2), not (1, 3)."
    with pytest.raises(ChipError) as e:
        SystolicArray(0, 4)
    assert str(e.value) == "A systolic array needs at least one row and one column, not 0 by 4."
