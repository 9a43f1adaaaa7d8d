"""`model_step`: run a `train_step(self, data)` in TensorFlow's form as Keras's step on JAX.

Idea: on JAX, Keras passes a step its state as lists of arrays and takes the new lists back. TensorFlow's form assigns
to variables instead. Here the step runs in a stateless scope, which collects the assignments.

Rule: abstract calls of the step build the model and its optimizers, and find the variables that it assigns. Those
outside of the model's lists (of a second optimizer, of a seed generator) join the variables of `model.optimizer`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import keras

from anytpu import _keras
from anytpu.program.program import spec_of
from anytpu.strategy.replicas import BuildScope, ReplicaScope

_MARK = "_anytpu_model_step"
_BUILT = "_anytpu_built_step"
_MODES = {4: "train", 3: "test", 2: "predict"}
"""The step of Keras that passes this number of lists."""


def model_step(step: Callable) -> Callable:
    """Decorate `train_step`, `test_step` or `predict_step` of a Keras model that takes only `data`, as in TensorFlow.

    The step may assign to variables, call optimizers and update metrics. Its gradients come from `tpu.value_and_grad`.
    `self.compiled_loss(y, y_pred)` and `self.compiled_metrics.update_state(y, y_pred)` work as in TensorFlow.

    Args:
        step: the method `(self, data) -> logs`; `predict_step` returns the predictions. `data` is a batch as the data
            set yields it, such as `(x, y)`, or an array alone.

    Returns:
        The method in the form that Keras calls on JAX.

    Example:
        >>> class Line(keras.Model):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.dense = keras.layers.Dense(1)
        ...     @model_step
        ...     def train_step(self, data):
        ...         x, y = data
        ...         loss, gradients = tpu.value_and_grad(
        ...             lambda: keras.ops.mean((self.dense(x) - y) ** 2), self.dense.trainable_variables)()
        ...         self.optimizer.apply_gradients(zip(gradients, self.dense.trainable_variables))
        ...         return {"loss": loss}
        >>> model = Line()
        >>> model.compile("sgd")
        >>> list(model.fit(np.ones((8, 2)), np.ones((8, 1)), verbose=0).history)
        ['loss']
    """
    _install()

    @functools.wraps(step)
    def keras_step(self: Any, state: Any, data: Any) -> tuple[Any, Any]:
        lists = _lists(self, _MODES[len(state)])
        variables = [variable for each in lists for variable in each]
        values = [value for each in state for value in each]
        pairs = list(zip(variables, values, strict=True))
        outer = _keras.stateless_scope()
        with ReplicaScope(pairs, outer=outer) as scope:
            result = _called(step, self, data)
        if outer is not None:
            listed = set(map(id, variables))
            for update in scope.written():
                if id(update[0]) not in listed:
                    outer.add_update(update)
        new = tuple([scope.held(variable) for variable in each] for each in lists)
        # `predict` returns only the non-trainables.
        return result, (new if len(state) > 2 else new[1])

    setattr(keras_step, _MARK, step)
    return keras_step


def _called(step: Callable, model: Any, data: Any) -> Any:
    result = step(model, _as_in_tensorflow(data))
    return jax.tree.map(lambda leaf: leaf.value if isinstance(leaf, keras.Variable) else leaf, result)


def _lists(model: Any, mode: str) -> tuple[list[Any], ...]:
    """Return the lists of variables that Keras passes to a step."""
    weights = (model.trainable_variables, model.non_trainable_variables)
    metrics = () if mode == "predict" else (model.metrics_variables,)
    return (*weights, *((model.optimizer.variables,) if mode == "train" else ()), *metrics)


def _as_in_tensorflow(data: Any) -> Any:
    """Return a batch without missing parts; an array that is the only part comes without a tuple."""
    if not isinstance(data, tuple):
        return data
    while len(data) > 1 and data[-1] is None:
        data = data[:-1]
    return data[0] if len(data) == 1 and hasattr(data[0], "shape") else data


def _install() -> None:
    """Let Keras build models by their step, and add TensorFlow's names for the compiled loss and metrics, once."""
    owner = _keras.trainer_module().Trainer
    _keras.wrap(owner, "_symbolic_build", _wrap_build)
    _keras.add_method(owner, "compiled_loss", _compiled_loss)
    _keras.add_method(owner, "compiled_metrics", property(_CompiledMetrics))  # pyright: ignore[reportArgumentType]


def _wrap_build(build: Callable) -> Callable:
    def wrapper(self: Any, iterator: Any = None, data_batch: Any = None) -> None:
        step = getattr(type(self).train_step, _MARK, None)
        if step is None:
            return build(self, iterator=iterator, data_batch=data_batch)
        if vars(self).get(_BUILT) is not self.optimizer:
            _build(self, step, _first_batch(iterator) if data_batch is None else data_batch)
            vars(self)[_BUILT] = self.optimizer
        _keras.finish_build(self)
        return None

    return wrapper


def _first_batch(iterator: Any) -> Any:
    """Return the first batch of Keras's iterator over an epoch; Keras resets it afterwards."""
    for *_, batches in iterator:
        return batches[0] if isinstance(batches, list | tuple) else next(batches)
    return None


def _build(model: Any, step: Callable, batch: Any) -> None:
    """Call the step abstractly, so that all parts make their variables, and find the variables that it assigns."""
    scope = _trace(lambda data: _called(step, model, data), batch)
    # Keras passes a step the variables of the model and of its optimizer. The others become variables of the
    # optimizer.
    own = {id(variable) for each in _lists(model, "train") for variable in each}
    optimizers = [value for value in vars(model).values() if isinstance(value, keras.optimizers.Optimizer)]
    others = [variable for optimizer in optimizers for variable in optimizer.variables]
    others += [variable for variable, _ in scope.written()]
    _keras.add_variables(model.optimizer, [v for v in {id(v): v for v in others}.values() if id(v) not in own])
    model.built = True


def _trace(function: Callable, batch: Any) -> ReplicaScope:
    """Trace a function of a batch until it makes no more variables; return the scope that saw its variables."""
    while True:
        scope, is_repeated = BuildScope(), False

        def traced(data: Any, scope: BuildScope = scope) -> None:
            scope.begins_here()
            function(data)

        with scope:
            try:
                jax.eval_shape(traced, spec_of(batch))
            except Exception:
                # The step may have failed because it named variables that it made afterwards.
                is_repeated = scope.has_made_variables
                if not is_repeated:
                    raise
        if not is_repeated:
            return scope


def _compiled_loss(
    self: Any, y: Any = None, y_pred: Any = None, sample_weight: Any = None, regularization_losses: Any = None
) -> Any:
    """Return the loss of `compile` with the losses of the layers, and update the metric "loss", as TensorFlow does.

    Args:
        self: the model.
        y: targets.
        y_pred: predictions.
        sample_weight: weights of the rows; None for equal ones.
        regularization_losses: not used: the losses of the layers are added in any case.
    """
    loss = self.compute_loss(None, y, y_pred, sample_weight)
    tracker = _keras.loss_tracker(self)
    # A model that overrides `metrics` has a mean of its own, also of this name.
    if tracker is not None and any(metric is tracker for metric in self.metrics):
        tracker.update_state(loss, sample_weight=jax.tree.leaves(y_pred)[0].shape[0])
    return loss


class _CompiledMetrics:
    """TensorFlow's `model.compiled_metrics`: the metrics of `compile`.

    Args:
        model: a compiled model.
    """

    def __init__(self, model: Any) -> None:
        self._metrics = _keras.compiled_metrics(model)

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Update the metrics of `compile` with a batch."""
        if self._metrics is not None:
            self._metrics.update_state(y, y_pred, sample_weight)
