"""Checks for conflicts between `keras.distribution` and a strategy.

Rule: only one system places a variable. A strategy places variables itself, so it raises an error while Keras has a
distribution set.
"""

from __future__ import annotations

from typing import Any

import jax
import keras

from anytpu import _keras
from anytpu.errors import ProgramError, StrategyError


def refuse_distribution(what: str) -> None:
    """Raise while Keras has a distribution set.

    Args:
        what: the other system that places variables, as the subject of a sentence.

    Raises:
        StrategyError: `keras.distribution.set_distribution` was called, or the caller is in the scope of a
            distribution.
    """
    distribution = keras.distribution.distribution()
    if distribution is not None:
        raise StrategyError(
            f"keras.distribution.{type(distribution).__name__} is set, and {what} places variables too: two systems "
            "cannot place the same ones. To use the strategy alone, type keras.distribution.set_distribution(None) "
            "before the model is made; to use keras.distribution alone, make and compile the model outside of "
            "strategy.scope()"
        )


def refuse_split_variables(model: Any) -> None:
    """Raise if Keras or JAX would shard the variables of a model over a mesh, because its Program does not.

    `keras.distribution.DataParallel` is allowed: like a Program it splits only batches.

    Raises:
        ProgramError: another distribution is set, or a mesh by `jax.set_mesh`, or a variable of the model is sharded.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size > 1:
        axes = ", ".join(f"{name}={size}" for name, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True))
        raise ProgramError(
            f"a mesh is set ({axes}), and the Program of {model.name!r} would not follow it: leave jax.set_mesh out"
        )
    distribution = keras.distribution.distribution()
    if distribution is not None and not isinstance(distribution, keras.distribution.DataParallel):
        raise ProgramError(
            f"keras.distribution.{type(distribution).__name__} is set, and the Program of {model.name!r} would not "
            f"follow its layout. {_INSTEAD}"
        )
    for variable in model.variables:
        value = _keras.value_of(variable)
        if isinstance(value, jax.Array) and not value.sharding.is_fully_replicated:
            raise ProgramError(
                f"the variable {variable.path!r} of {model.name!r} is split over {len(value.sharding.device_set)} "
                f"devices, and a Program would not follow that. {_INSTEAD}"
            )


_INSTEAD = (
    "Write the step as a JAX function, and its layout as jax.sharding.NamedSharding on its input_specs. To have each "
    "device hold the whole model, type keras.distribution.set_distribution(None) before the model is made"
)
