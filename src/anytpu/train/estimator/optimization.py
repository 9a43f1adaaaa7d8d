"""From the wish of a `train_op` to new weights: which gradient, and how the optimizer takes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras

from anytpu.errors import EstimatorError
from anytpu.strategy.assignments import write_back
from anytpu.strategy.gradients import value_and_grad
from anytpu.train.low_level.cross_shard import CrossShardOptimizer
from anytpu.train.minimization import Minimization


def checked_train_op(train_op: Any, use_tpu: bool) -> Minimization:
    """Return a train_op that is a wish to minimise something.

    Args:
        train_op: what a model_fn put into its spec.
        use_tpu: True on the cores of a TPU, where gradients must be summed.

    Raises:
        EstimatorError: it is something else, or its optimizer sees the gradients of one core only.
    """
    if not isinstance(train_op, Minimization):
        raise EstimatorError(
            f"train_op must be what optimizer.minimize(loss) returns, not {train_op!r}: a traced loss has no gradient, "
            "so the estimator differentiates model_fn itself. To clip gradients, use an optimizer that does: "
            "keras.optimizers.Adam(clipnorm=1.0)"
        )
    if use_tpu and not isinstance(train_op.optimizer, CrossShardOptimizer):
        raise EstimatorError(
            "CrossShardOptimizer must be used for model training on TPUs. Write optimizer = "
            f"tpu.CrossShardOptimizer(keras.optimizers.{type(train_op.optimizer).__name__}(...)) before "
            "optimizer.minimize(loss)"
        )
    return train_op


def scale_of(optimizer: Any) -> float:
    """Return what the loss of one replica is multiplied by before it is differentiated."""
    return optimizer.loss_scale() if isinstance(optimizer, CrossShardOptimizer) else 1.0


def differentiated(loss_fn: Callable[[], tuple[Any, Any]], variables: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return what `loss_fn` returns beside its loss, and the gradients of the loss, summed over the replicas."""
    (_, beside), gradients = value_and_grad(loss_fn, variables, has_aux=True)()
    return beside, gradients


def apply(train_op: Minimization, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Let the optimizer of a train_op change variables. Return the variables of its own state, also for optax."""
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
        variables: what it changes.

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
        """Return the state as the optimizer takes it."""
        return self._tree.unflatten([variable.value for variable in self.variables])

    def assign(self, state: Any) -> None:
        """Take a new state."""
        for variable, leaf in zip(self.variables, jax.tree.leaves(state), strict=True):
            variable.assign(leaf)


def _slot(index: int, path: Any, leaf: Any, initial: Callable[[], Any]) -> Any:
    def initializer(shape: Any, dtype: Any = None) -> Any:
        # Computed anew: the weights have values when this is called for good, and are traced before.
        return jnp.asarray(jax.tree.leaves(initial())[index], dtype)

    name = jax.tree_util.keystr(path).strip(".").replace("/", "_")
    return keras.Variable(initializer, shape=leaf.shape, dtype=leaf.dtype.name, trainable=False, name=name)
