"""Any number of examples, any batch, any number of cores: a sample of the exact grid against plain Keras."""

from __future__ import annotations

import itertools

import pytest

from exact import grid
from exact.children import run


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("backend", "dtype"), list(itertools.product(grid.BACKENDS, grid.DTYPES)))
def test_sizes_are_exact(backend: str, dtype: str):
    cases = grid.sample(backend, dtype)
    found = list(run(cases))

    assert [result.case for result in found] == cases
    assert [fault for result in found for fault in result.faults] == []
