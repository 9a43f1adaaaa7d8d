"""`batch_of`: the batch of a check, from the user's arrays or generated.

Rule: generated rows come from one seed, so two checks of a model compare the same numbers.
"""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.errors import DataError
from anytpu.program.program import Tree, spec_of
from anytpu.strategy.state_extension import LAYERS
from anytpu.train import checks
from anytpu.train.batch_specs import input_specs_of, label_specs_of, outputs_of, with_batch_size
from anytpu.train.model_program import build_layers

SEED = 0
"""The seed of generated rows."""


def batch_of(model: Any, x: Any, y: Any, rows: int, specs: Tree = None) -> tuple[Tree, str]:
    """Return a batch `(x, y)` as arrays, and a short description of it.

    Args:
        model: a compiled model.
        x: arrays, or None to generate them.
        y: arrays, or None to generate them.
        rows: maximum number of rows.
        specs: specs of generated inputs, of any number of rows; None: those that the model knows.

    Raises:
        DataError: y is passed without x, or arrays are passed that no TPU computes with.
        ProgramError: x is None, and the model does not know the shapes of its inputs.
    """
    if x is None and y is not None:
        raise DataError("y was passed without x: pass both, tpu.check(model, x, y), or neither to generate both")
    checks.check_columns({"x": x, "y": y})
    generator = np.random.default_rng(SEED)
    inputs = _inputs(model, rows, generator, specs) if x is None else _first(x, rows)
    build_layers(model, spec_of(inputs))
    if y is not None:
        return (inputs, _first(y, rows)), "the first rows of x and y"
    whose = "" if x is None else "the first rows of x, y "
    return (inputs, _labels(model, inputs, generator)), f"{whose}generated from seed {SEED}"


def _first(tree: Any, rows: int) -> Tree:
    arrays = jax.tree.map(np.asarray, tree)
    return jax.tree.map(lambda array, spec: array[:rows].astype(spec.dtype), arrays, spec_of(arrays))


def _inputs(model: Any, rows: int, generator: np.random.Generator, specs: Tree) -> Tree:
    layers = _keras.layers_of(model)
    sizes = [layer.input_dim for layer in layers if isinstance(layer, keras.layers.Embedding) or layer in LAYERS]

    def generate(spec: jax.ShapeDtypeStruct) -> np.ndarray:
        if np.issubdtype(spec.dtype, np.integer) or spec.dtype == bool:
            return generator.integers(0, min(sizes, default=2), spec.shape).astype(spec.dtype)
        # The inputs of an embedding are integers, even if the model's Input declares a float type.
        numbers = generator.integers(0, min(sizes), spec.shape) if sizes else generator.normal(size=spec.shape)
        return numbers.astype(spec.dtype)

    wanted = input_specs_of(model, rows) if specs is None else with_batch_size(spec_of(specs), rows)
    return jax.tree.map(generate, wanted)


def _labels(model: Any, inputs: Tree, generator: np.random.Generator) -> Tree:
    specs = spec_of(inputs)

    def generate(spec: jax.ShapeDtypeStruct, output: jax.ShapeDtypeStruct) -> np.ndarray:
        classes = max(2, output.shape[-1] if output.shape else 2)
        if np.issubdtype(spec.dtype, np.integer):
            return generator.integers(0, classes, spec.shape).astype(spec.dtype)
        if not spec.shape or spec.shape[-1] < 2:
            return generator.integers(0, 2, spec.shape).astype(spec.dtype)
        return np.eye(spec.shape[-1], dtype=spec.dtype)[generator.integers(0, spec.shape[-1], spec.shape[:-1])]

    return jax.tree.map(generate, label_specs_of(model, specs), outputs_of(model, specs))
