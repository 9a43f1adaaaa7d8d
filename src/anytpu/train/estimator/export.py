"""What leaves an estimator: its programs, and the file of a prediction."""

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


def prediction(step_of: Callable[[int], ModelStep], given: Any, tensors: bool) -> Program:
    """Return the prediction as a Program.

    Args:
        step_of: makes the step for so many rows.
        given: the features, as `serving_features` takes them.
        tensors: with the values of the variables.
    """
    features = serving_features(given)
    rows = jax.tree.leaves(features)[0].shape[0]
    program, variables = prediction_program(step_of(rows), features)
    return with_values(program, variables) if tensors else program


def training(run: ModeRun, input_specs: Any, tensors: bool) -> Program:
    """Return a step of training as a Program.

    Args:
        run: the mode TRAIN on its cores.
        input_specs: features and labels of a global batch, specs or arrays.
        tensors: with the values of the variables.
    """
    program, variables = training_program(run, tuple(input_specs))
    return with_values(program, variables) if tensors else program


def exported(program: Program, folder: str | Path, step: int, platforms: tuple[str, ...]) -> str:
    """Write a program with its values as `<folder>/<step>.anytpu`, and return the path."""
    place = Path(folder).expanduser() / f"{step}{SUFFIX}"
    place.parent.mkdir(parents=True, exist_ok=True)
    write(program, place, platforms=platforms)
    return str(place)


def serving_features(given: Any) -> Tree:
    """Return the specs of the features that an exported program takes.

    Args:
        given: a function that returns arrays or specs, or these themselves.

    Raises:
        EstimatorError: it is neither.
    """
    made = given() if callable(given) else given
    leaves = jax.tree.leaves(made)
    if not leaves or not all(isinstance(leaf, np.ndarray | jax.Array | jax.ShapeDtypeStruct) for leaf in leaves):
        raise EstimatorError(
            "serving_input_receiver_fn must return the features of a batch, arrays or jax.ShapeDtypeStruct, not "
            f"{made!r}: for example lambda: jax.ShapeDtypeStruct((8, 32, 32, 3), 'float32')"
        )
    return spec_of(made)
