"""Run a `train_op`: compute the gradients of its loss, and update the weights with its optimizer."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.core import Tracer

from anytpu.errors import EstimatorError
from anytpu.migrate.low_level.cross_shard import CrossShardOptimizer, Minimization
from anytpu.strategy.assignments import write_back

_EMPTY = types.CellType()


def check_train_op(train_op: Any, use_tpu: bool) -> None:
    """Check a train_op.

    Args:
        train_op: the `train_op` of a model_fn's spec.
        use_tpu: whether the step runs on the cores of a TPU, where gradients must be summed.

    Raises:
        EstimatorError: `train_op` is not a `Minimization`, or its optimizer gets the gradients of one core only.
    """
    if not isinstance(train_op, Minimization):
        raise EstimatorError(
            f"train_op must be the result of optimizer.minimize(loss), not {train_op!r}: a traced loss has no "
            "gradient, so the estimator differentiates model_fn itself. To clip gradients, use an optimizer that does: "
            "keras.optimizers.Adam(clipnorm=1.0)"
        )
    if use_tpu and not isinstance(train_op.optimizer, CrossShardOptimizer):
        raise EstimatorError(
            "CrossShardOptimizer must be used for model training on TPUs. Write optimizer = "
            f"tpu.CrossShardOptimizer(keras.optimizers.{type(train_op.optimizer).__name__}(...)) before "
            "optimizer.minimize(loss)"
        )
    if _holds_traced_array(getattr(train_op.optimizer, "opt", train_op.optimizer), set()):
        raise EstimatorError(
            "the optax optimizer of train_op holds a value that model_fn computed, such as a learning rate from the "
            "global step; it is applied outside of model_fn's gradient. Give optax a schedule, a function of the "
            "number of updates: optax.sgd(optax.exponential_decay(0.1, 1000, 0.9))"
        )


def _holds_traced_array(value: Any, seen: set[int]) -> bool:
    """Return whether an optax optimizer has a traced array in its tuples, or in the closures of its functions."""
    if isinstance(value, Tracer):
        return True
    if id(value) in seen:
        return False
    seen.add(id(value))
    inner = value if isinstance(value, tuple | list) else ()
    if isinstance(value, functools.partial):
        inner = (value.func, *value.args, *value.keywords.values())
    elif inspect.isfunction(value):
        inner = [cell.cell_contents for cell in value.__closure__ or () if cell != _EMPTY]
    return any(_holds_traced_array(item, seen) for item in inner)


def apply(train_op: Minimization, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Update variables with the optimizer of a train_op. Return the variables of its state, also for optax."""
    optimizer = train_op.optimizer
    inner = optimizer.opt if isinstance(optimizer, CrossShardOptimizer) else optimizer
    if isinstance(inner, keras.optimizers.Optimizer):
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return list(inner.variables)
    values = [variable.value for variable in variables]
    slots = _Slots(optimizer, variables)
    new_values, new_state = optimizer.apply_gradients(list(gradients), slots.state(), values)
    for variable, value in zip(variables, new_values, strict=True):
        write_back(variable, value)
    slots.assign(new_state)
    return slots.variables


class _Slots:
    """The state of an optax optimizer in Keras variables, one for each array.

    Args:
        optimizer: the optimizer.
        variables: the variables that it updates.

    Attributes:
        variables: the variables of the state.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any]) -> None:
        def initial() -> Any:
            return optimizer.init([variable.value for variable in variables])

        paths, self._tree = jax.tree_util.tree_flatten_with_path(initial())
        with keras.name_scope("optimizer"):
            self.variables = [_slot(index, path, leaf, initial) for index, (path, leaf) in enumerate(paths)]

    def state(self) -> Any:
        """Return the state in the optimizer's form."""
        return self._tree.unflatten([variable.value for variable in self.variables])

    def assign(self, state: Any) -> None:
        """Assign a new state to the variables."""
        for variable, leaf in zip(self.variables, jax.tree.leaves(state), strict=True):
            variable.assign(leaf)


def _slot(index: int, path: Any, leaf: Any, initial: Callable[[], Any]) -> Any:
    def initializer(shape: Any, dtype: Any = None) -> Any:
        # Computed again: when Keras calls this to set the value, the weights have values; before, they were traced.
        return jnp.asarray(jax.tree.leaves(initial())[index], dtype)

    name = jax.tree_util.keystr(path).strip(".").replace("/", "_")
    return keras.Variable(initializer, shape=leaf.shape, dtype=leaf.dtype.name, trainable=False, name=name)
