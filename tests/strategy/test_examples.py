"""The examples in the docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import keras
import numpy as np
import pytest

import anytpu as tpu
import anytpu.strategy

MODULES = [f"anytpu.strategy.{module.name}" for module in pkgutil.iter_modules(anytpu.strategy.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    names = {"keras": keras, "np": np, "strategy": tpu.connect("virtual", cores=2)}
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs=names | {key: getattr(tpu, key) for key in tpu.__all__})
    assert result.failed == 0
