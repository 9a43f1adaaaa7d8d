"""The batch of a check: rows that were given, or rows that are made of what the model knows of its inputs.

Rule: made rows come from a fixed seed. Numbers are normally distributed, whole numbers are below the smallest number of
entries of the model's embeddings, labels are classes or one-hot rows, which every loss takes.
"""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.errors import DataError
from anytpu.program.program import Tree, spec_of
from anytpu.train import checks
from anytpu.train.batch_specs import input_specs_of, label_specs_of, outputs_of

SEED = 0
"""The seed of made rows."""


def batch_of(model: Any, x: Any, y: Any, rows: int) -> tuple[Tree, str]:
    """Return a batch `(x, y)` of up to so many rows, as arrays, and what it is in a few words.

    Args:
        model: a compiled model.
        x: arrays, or None to make some.
        y: arrays, or None to make some.
        rows: the most.

    Raises:
        DataError: y without x, or arrays that cannot be computed with.
        ProgramError: rows are to be made, and the model does not know the shapes of its inputs.
    """
    if x is None and y is not None:
        raise DataError("y was given without x: pass both, tpu.check(model, x, y), or neither, and both are made")
    checks.check_columns({"x": x, "y": y})
    generator = np.random.default_rng(SEED)
    inputs = _inputs(model, rows, generator) if x is None else _first(x, rows)
    build(model, inputs)
    if y is not None:
        return (inputs, _first(y, rows)), "of those that were given"
    whose = "" if x is None else "x of those that were given, y "
    return (inputs, _labels(model, inputs, generator)), f"{whose}made from seed {SEED}"


def build(model: Any, inputs: Tree) -> None:
    """Build the layers of a model that has not seen a batch yet."""
    if not _keras.is_built(model):
        symbolic = jax.tree.map(lambda one: keras.KerasTensor(one.shape, one.dtype.name), spec_of(inputs))
        _keras.keras_backend().compute_output_spec(model, symbolic, training=False)


def _first(tree: Any, rows: int) -> Tree:
    arrays = jax.tree.map(np.asarray, tree)
    return jax.tree.map(lambda one, spec: one[:rows].astype(spec.dtype), arrays, spec_of(arrays))


def _inputs(model: Any, rows: int, generator: np.random.Generator) -> Tree:
    sizes = [one.input_dim for one in _keras.layers_of(model) if isinstance(one, keras.layers.Embedding)]

    def made(spec: jax.ShapeDtypeStruct) -> np.ndarray:
        if np.issubdtype(spec.dtype, np.integer) or spec.dtype == bool:
            return generator.integers(0, min(sizes, default=2), spec.shape).astype(spec.dtype)
        # The inputs of an embedding are whole numbers, whatever type its model was told of.
        numbers = generator.integers(0, min(sizes), spec.shape) if sizes else generator.normal(size=spec.shape)
        return numbers.astype(spec.dtype)

    return jax.tree.map(made, input_specs_of(model, rows))


def _labels(model: Any, inputs: Tree, generator: np.random.Generator) -> Tree:
    specs = spec_of(inputs)

    def made(spec: jax.ShapeDtypeStruct, output: jax.ShapeDtypeStruct) -> np.ndarray:
        classes = max(2, output.shape[-1] if output.shape else 2)
        if np.issubdtype(spec.dtype, np.integer):
            return generator.integers(0, classes, spec.shape).astype(spec.dtype)
        if not spec.shape or spec.shape[-1] < 2:
            return generator.integers(0, 2, spec.shape).astype(spec.dtype)
        return np.eye(spec.shape[-1], dtype=spec.dtype)[generator.integers(0, spec.shape[-1], spec.shape[:-1])]

    return jax.tree.map(made, label_specs_of(model, specs), outputs_of(model, specs))
