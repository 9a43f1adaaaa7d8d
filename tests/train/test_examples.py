"""The examples in the docstrings run."""

from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["train.padding", "migrate.keras_to_tpu.conversion", "migrate.keras_to_tpu.tpu_model"])
def test_examples(name: str):
    result = doctest.testmod(importlib.import_module(f"anytpu.{name}"))
    assert result.attempted
    assert result.failed == 0
