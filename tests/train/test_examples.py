"""The examples in the docstrings run."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["padding"])
def test_examples(name: str):
    result = doctest.testmod(importlib.import_module(f"anytpu.train.{name}"))
    assert result.attempted
    assert result.failed == 0
