"""The examples in the docstrings of `anytpu.engine` run, and print what they say."""

from __future__ import annotations

import doctest
import importlib

import jax
import pytest

from anytpu import engine
from anytpu.system import TPUClusterResolver, initialize_tpu_system


@pytest.mark.parametrize("name", ["placement"])
def test_examples(name: str):
    initialize_tpu_system(TPUClusterResolver("v2-8"))
    names = {exported: getattr(engine, exported) for exported in engine.__all__} | {"jax": jax}
    result = doctest.testmod(importlib.import_module(f"anytpu.engine.{name}"), extraglobs=names)
    assert result.attempted > 0
    assert result.failed == 0
