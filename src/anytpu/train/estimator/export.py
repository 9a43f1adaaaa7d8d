"""Export an estimator's steps as Programs, and its prediction as a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from anytpu.errors import EstimatorError
from anytpu.program.file import SUFFIX, write
from anytpu.program.program import Program, Tree, spec_of
from anytpu.train.estimator.mode_run import ModeRun
from anytpu.train.estimator.programs import prediction_program, training_program, with_values
from anytpu.train.estimator.steps import ModelStep


def prediction(step_of: Callable[[int], ModelStep], source: Any, tensors: bool) -> Program:
    """Return the prediction step as a Program.

    Args:
        step_of: makes the step for a number of rows.
        source: the features, as `serving_features` takes them.
        tensors: whether to include the values of the variables.
    """
    features = serving_features(source)
    rows = jax.tree.leaves(features)[0].shape[0]
    program, variables = prediction_program(step_of(rows), features)
    return with_values(program, variables) if tensors else program


def training(run: ModeRun, input_specs: Any, tensors: bool) -> Program:
    """Return a training step as a Program.

    Args:
        run: the run of mode TRAIN.
        input_specs: specs or arrays of a global batch, `(features, labels)`.
        tensors: whether to include the values of the variables.
    """
    program, variables = training_program(run, tuple(input_specs))
    return with_values(program, variables) if tensors else program


def exported(program: Program, folder: str | Path, step: int, platforms: tuple[str, ...]) -> str:
    """Write a program with its values as `<folder>/<step>.anytpu`, and return the path."""
    path = Path(folder).expanduser() / f"{step}{SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)
    write(program, path, platforms=platforms)
    return str(path)


def serving_features(source: Any) -> Tree:
    """Return the specs of the features that an exported program takes.

    Args:
        source: a tree of arrays or specs, or a function that returns one.

    Raises:
        EstimatorError: `source` is neither.
    """
    features = source() if callable(source) else source
    leaves = jax.tree.leaves(features)
    if not leaves or not all(isinstance(leaf, np.ndarray | jax.Array | jax.ShapeDtypeStruct) for leaf in leaves):
        raise EstimatorError(
            "serving_input_receiver_fn must return the features of a batch, arrays or jax.ShapeDtypeStruct, not "
            f"{features!r}: for example lambda: jax.ShapeDtypeStruct((8, 32, 32, 3), 'float32')"
        )
    return spec_of(features)
