"""The examples in the docstrings of `anytpu.sharding` run, and print what they say."""

from __future__ import annotations

import doctest
import importlib

import jax
import numpy as np
import pytest

MODULES = ("forms", "layouts", "logical_axes")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str):
    module = importlib.import_module(f"anytpu.sharding.{name}")
    result = doctest.testmod(module, extraglobs={"jax": jax, "np": np})
    assert result.attempted > 0
    assert result.failed == 0
