from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "replaced.table",
        "port.program",
        "port.rules",
        "port.tree",
        "keras_to_tpu.conversion",
        "keras_to_tpu.tpu_model",
    ],
)
def test_examples_in_the_docstrings(name: str):
    outcome = doctest.testmod(importlib.import_module(f"anytpu.migrate.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
