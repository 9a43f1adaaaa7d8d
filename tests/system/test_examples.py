from __future__ import annotations

import doctest
import importlib

import pytest


@pytest.mark.usefixtures("bare_machine")
@pytest.mark.parametrize("name", ["chips", "topologies", "workers", "resolver", "lifecycle"])
def test_examples_in_the_docstrings(name: str):
    outcome = doctest.testmod(importlib.import_module(f"anytpu.system.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
