"""The examples in all docstrings run, and print what they say."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest

import anytpu as tpu
from anytpu import embedding, engine, program
from anytpu.planning.costs.prices import read_prices
from anytpu.planning.hlo import parse, shapes_of
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records import OpTime
from anytpu.planning.records.target import target_named
from program_samples import linear
from source_tree import modules

FLAGS = doctest.ELLIPSIS
# Their examples show a call with a value that only the text describes.
SKETCHES = {
    "anytpu.chip.network.functions",
    "anytpu.chip.network.hosting",
    "anytpu.chip.network.reading",
    "anytpu.planning.records.stored",
    "anytpu.program.step_shardings",
}
MODULES = [name for name, module in modules().items() if ">>>" in module.text and name not in SKETCHES]


def names_of_an_example(module: str) -> Mapping[str, Any]:
    """Return what the examples of a module use without an import."""
    packages = (tpu, program, engine, embedding)
    names = {name: getattr(package, name) for package in packages for name in package.__all__}
    names |= {"tpu": tpu, "dataclasses": dataclasses, "jax": jax, "jnp": jnp, "keras": keras, "np": np, "optax": optax}
    names |= {"P": jax.sharding.PartitionSpec, "folder": "checkpoints"}
    if module.startswith(("anytpu.strategy.", "anytpu.migrate.low_level.")):
        names |= {"strategy": tpu.connect("virtual", cores=2)}
    if module == "anytpu.engine.placement":
        tpu.connect("virtual", cores=8)
    if module.startswith("anytpu.program."):
        sample = linear()
        names |= {"program": sample.program, "state": sample.state, "batch": sample.batch}
    if module.startswith("anytpu.planning."):
        names |= {"program": step_of_128_columns(), "target_named": target_named, "read_prices": read_prices}
        names |= {"PlanSettings": PlanSettings, "OpTime": OpTime, "parse": parse, "shapes_of": shapes_of}
    return names


def step_of_128_columns() -> program.Program:
    def step(weight: Any, x: Any) -> tuple[Any, Any]:
        value, slope = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(weight)
        return weight - slope, value

    weight, batch = jax.ShapeDtypeStruct((128, 128), jnp.float32), jax.ShapeDtypeStruct((64, 128), jnp.float32)
    return program.Program("sgd/train", step, weight, batch, program.ROWS)


# An example may show a warning, and those of Keras are no concern of an example.
@pytest.mark.filterwarnings("always")
@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    keras.backend.clear_session(free_memory=False)  # The names of layers count from 0.
    imported = importlib.import_module(module)
    names = {name: value for name, value in names_of_an_example(module).items() if name not in vars(imported)}
    assert doctest.testmod(imported, extraglobs=names, optionflags=FLAGS).failed == 0
