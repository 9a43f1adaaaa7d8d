"""Checks of the optimizer that assigns new tables in place of gradients.

Idea: Keras's optimizers assign to a table its "gradient", the new table (`rows.py`). That is right if the backward pass
computed the table once in this step. JAX gives zeros for a table that the loss does not depend on, and adds up the
tables of several backward passes. A step count, which is assigned in the same way, tells these cases apart.

Rule: a table without a gradient stays. A table of several backward passes is refused while the step is traced. If JAX
has hidden a pass in a loop, the step count becomes NaN, and with it the next update. Optimizers that scale, accumulate
or average assigned values are refused.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from anytpu import _keras
from anytpu.errors import ProgramError, SettingError

_OWNER = "_anytpu_table"


class BackwardPasses:
    """Counts the backward passes through a table since the last update: an identity that JAX keeps through a trace."""

    def __init__(self) -> None:
        self.count = 0

    def taken(self) -> int:
        """Return the count, and begin again at 0."""
        count, self.count = self.count, 0
        return count


def watch(layer: Any) -> None:
    """Let the optimizers of Keras check the variables of a table before they assign them.

    Args:
        layer: a `TableLayer` whose variables are made.
    """
    for variable in [*layer.table_variables, layer.steps]:
        vars(variable)[_OWNER] = weakref.ref(layer)
    for optimizer in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        _keras.wrap(optimizer, "build", _wrap_build, by="tables")
    _keras.wrap(keras.optimizers.Optimizer, "apply", _wrap_apply, by="tables")


def _wrap_build(build: Callable) -> Callable:
    def wrapper(self: Any, variables: Any, *args: Any, **kwargs: Any) -> None:
        owners = _owners(variables)
        if owners:
            _refuse_setting(self, owners[0])
        build(self, variables, *args, **kwargs)

    return wrapper


def _refuse_setting(optimizer: Any, layer: Any) -> None:
    settings = ("gradient_accumulation_steps", "loss_scale_factor", "ema_overwrite_frequency")
    wrong = [f"{name}={getattr(optimizer, name)}" for name in settings if getattr(optimizer, name, None)]
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        wrong = ["LossScaleOptimizer, which mixed_float16 adds by itself"]
    if wrong:
        raise SettingError(
            f"the table of {layer.name!r} is assigned by the optimizer of the model, and {wrong[0]} would change that "
            'table. Leave it out; for half precision use keras.config.set_dtype_policy("mixed_bfloat16")'
        )


def _wrap_apply(apply: Callable) -> Callable:
    def wrapper(self: Any, grads: Any, trainable_variables: Any = None) -> None:
        variables = self._trainable_variables if trainable_variables is None else list(trainable_variables)
        owners = _owners(variables)
        if owners:
            grads = _checked(list(grads), variables, owners)
            trainable_variables = None if trainable_variables is None else variables
        apply(self, grads, trainable_variables)

    return wrapper


def _checked(grads: list[Any], variables: Sequence[Any], owners: Sequence[Any]) -> list[Any]:
    """Return the values to assign, given what the backward pass has computed."""
    places = {id(variable): place for place, variable in enumerate(variables)}
    for layer in owners:
        passes, step = layer.passes.taken(), places.get(id(layer.steps))
        if passes > 1:
            raise ProgramError(
                f"{layer.name!r} has {passes} backward passes in one step, and each makes a table of its own. Call it "
                'once with all ids that use this table: liked, seen = layer({"liked": a, "seen": b}).values()'
            )
        if step is None or grads[step] is None:
            continue
        # The count is one more after one pass, and 0 without any. Another value shows passes that JAX has hidden in a
        # loop.
        counted, before = grads[step], layer.steps.value
        grads[step] = jnp.where((counted == before + 1) | (counted == 0), jnp.maximum(counted, before), jnp.nan)
        if passes == 0:
            # The loss does not depend on the table; or JAX has kept the trace of an inner function.
            for variable in layer.table_variables:
                place = places[id(variable)]
                grads[place] = jax.lax.cond(
                    counted == 0, lambda old, new: old, lambda old, new: new, variable.value, grads[place]
                )
    return grads


def _owners(variables: Any) -> list[Any]:
    """Return the tables among the variables of an optimizer, each once."""
    references = (vars(variable).get(_OWNER) for variable in variables if isinstance(variable, keras.Variable))
    layers = [reference() for reference in references if reference is not None]
    return list({id(layer): layer for layer in layers if layer is not None}.values())
