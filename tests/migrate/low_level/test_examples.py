"""The examples in the docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import jax
import keras
import numpy as np
import optax
import pytest

import anytpu as tpu
import anytpu.migrate.low_level

MODULES = [
    f"anytpu.migrate.low_level.{module.name}" for module in pkgutil.iter_modules(anytpu.migrate.low_level.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    tpu.connect("virtual", cores=2)
    names = {"keras": keras, "jax": jax, "np": np, "optax": optax}
    names |= {key: getattr(tpu, key) for key in anytpu.migrate.low_level.__all__}
    names |= {key: getattr(tpu, key) for key in ("TPUClusterResolver", "PerReplica")}
    result = doctest.testmod(importlib.import_module(name), extraglobs=names)
    assert result.failed == 0
