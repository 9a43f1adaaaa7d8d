"""The examples in the docstrings of `anytpu.program` run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu import program
from program_samples import linear

MODULES = ("axes", "program", "jaxprs", "manifest", "lowering", "makers", "file", "remembered", "unplaced")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    sample = linear()
    names = {exported: getattr(program, exported) for exported in program.__all__}
    names |= {"jax": jax, "np": np, "jnp": jnp, "P": jax.sharding.PartitionSpec}
    names |= {"program": sample.program, "state": sample.state, "batch": sample.batch}
    result = doctest.testmod(importlib.import_module(f"anytpu.program.{name}"), extraglobs=names)
    assert result.attempted > 0
    assert result.failed == 0
