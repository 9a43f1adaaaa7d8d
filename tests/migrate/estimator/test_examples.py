"""The examples in the docstrings run."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ["inputs", "run_config", "model_call"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str):
    module = importlib.import_module(f"anytpu.migrate.estimator.{name}")
    results = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert results.attempted > 0
    assert results.failed == 0
