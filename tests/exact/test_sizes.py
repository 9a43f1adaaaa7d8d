"""Any number of examples, any batch, cores and layout: a sample of the exact grid against plain Keras."""

from __future__ import annotations

import itertools

import pytest

from exact import grid
from exact.children import run


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("backend", "dtype"), list(itertools.product(grid.BACKENDS, grid.DTYPES)))
def test_sizes_are_exact(backend: str, dtype: str):
    assert_exact(grid.sample(backend, dtype))


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("backend", "dtype"), list(itertools.product(grid.BACKENDS, grid.DTYPES)))
def test_layouts_are_exact(backend: str, dtype: str):
    assert_exact(grid.sharded_sample(backend, dtype))


def assert_exact(cases: list[grid.Case]) -> None:
    found = list(run(cases))

    assert [result.case for result in found] == cases
    assert [fault for result in found for fault in result.faults] == []
