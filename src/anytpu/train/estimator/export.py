"""An exported prediction: what it takes, and where it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from anytpu.errors import EstimatorError
from anytpu.program.file import SUFFIX, write
from anytpu.program.program import Program, Tree, spec_of


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
