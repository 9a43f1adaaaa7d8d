"""`keras.distribution` beside a strategy.

Rule: a variable is placed by one system. A strategy places variables itself, so it refuses to work while Keras has a
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
        what: what places variables too, as the subject of a sentence.

    Raises:
        StrategyError: `keras.distribution.set_distribution` was called, or this is in the scope of a distribution.
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
    """Raise where Keras or JAX would lay the variables of a model over a mesh, which its Program does not.

    `keras.distribution.DataParallel` splits batches alone, as a Program does.

    Raises:
        ProgramError: another distribution is set, or a mesh by `jax.set_mesh`, or a variable of the model lies split.
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
                f"the variable {variable.path!r} of {model.name!r} lies split over {len(value.sharding.device_set)} "
                f"devices, and a Program would not follow that. {_INSTEAD}"
            )


_INSTEAD = (
    "Write the step as a JAX function, and its layout as jax.sharding.NamedSharding on its input_specs. To have each "
    "device hold the whole model, type keras.distribution.set_distribution(None) before the model is made"
)
