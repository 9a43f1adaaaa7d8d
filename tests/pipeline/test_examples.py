"""The examples in the docstrings of the pipeline run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import anytpu.pipeline

MODULES = [module.name for module in pkgutil.iter_modules(anytpu.pipeline.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str):
    assert doctest.testmod(importlib.import_module(f"anytpu.pipeline.{name}")).failed == 0
