"""The examples in the docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import jax
import keras
import numpy as np
import optax

import anytpu as tpu
import anytpu.migrate
import anytpu.migrate.low_level


def test_examples_in_the_docstrings():
    tpu.connect("virtual", cores=2)
    names = {"keras": keras, "jax": jax, "np": np, "optax": optax}
    names |= {key: getattr(tpu, key) for key in anytpu.migrate.low_level.__all__}
    names |= {key: getattr(tpu, key) for key in ("TPUClusterResolver", "PerReplica")}
    found = pkgutil.walk_packages(anytpu.migrate.__path__, "anytpu.migrate.")
    modules = [importlib.import_module(module.name) for module in found]
    results = {m.__name__: doctest.testmod(m, optionflags=doctest.ELLIPSIS, extraglobs=names) for m in modules}
    assert {name for name, result in results.items() if result.failed} == set()
    homes = {name.split(".")[2] for name, result in results.items() if result.attempted}
    assert homes >= {"estimator", "keras_to_tpu", "low_level", "port", "replaced"}
