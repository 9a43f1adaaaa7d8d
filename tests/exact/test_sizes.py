"""Any number of examples, any batch, cores and layout: a sample of the exact grid against plain Keras."""

from __future__ import annotations

import itertools

import pytest

from exact import grid
from exact.children import run

SYSTEMS = list(itertools.product(grid.BACKENDS, grid.DTYPES))


def assert_exact(cases: list[grid.Case]) -> None:
    found = list(run(cases))

    assert [result.case for result in found] == cases
    assert [fault for result in found for fault in result.faults] == []


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("backend", "dtype"), SYSTEMS)
def test_sizes_and_layouts_are_exact(backend: str, dtype: str):
    assert_exact([*grid.sample(backend, dtype), *grid.sharded_sample(backend, dtype)])


@pytest.mark.battery
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("backend", "dtype"), SYSTEMS)
def test_more_sizes_and_layouts_are_exact(backend: str, dtype: str):
    assert_exact(grid.larger_sample(backend, dtype))
