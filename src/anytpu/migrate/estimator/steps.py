"""The steps of one replica: training, evaluation and prediction.

Idea: a step calls the model_fn with the replica's rows and returns the outputs that the host needs. The strategy
compiles it, alone or in a loop.

Rule: before a step is compiled it is traced once (`make`), to make the variables of the model and the optimizer. The
spec of that call has the hooks and host functions.
"""

from __future__ import annotations

import abc
import copy
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import keras

from anytpu._contexts import value_within
from anytpu.errors import EstimatorError
from anytpu.migrate.estimator import optimization
from anytpu.migrate.estimator.model_call import ModelCall
from anytpu.migrate.estimator.spec import HostPair, TPUEstimatorSpec, check_batch_axis, name_of
from anytpu.migrate.estimator.state import ModelState
from anytpu.migrate.estimator.tables import EstimatorTables
from anytpu.migrate.low_level.cross_shard import CrossShardOptimizer
from anytpu.program.program import REPLICA_AXIS, Tree
from anytpu.strategy import scopes
from anytpu.strategy.current import CURRENT
from anytpu.strategy.gradients import grads_of_rows, value_and_grad_of_share
from anytpu.strategy.replicas import Replica, ReplicaScope, inside
from anytpu.strategy.summed import SummedGradient

EMBEDDING_GRADIENTS = "embedding_gradients"
"""The output of a training step with the gradients of its embeddings, by feature."""


class ModelStep(abc.ABC):
    """One step of a model_fn in one mode.

    Args:
        model_fn: takes `features`, and those of `labels`, `mode`, `params` and `config` that its signature names.
        params: the user's params, with "batch_size" (of one replica) and "use_tpu".
        config: the `RunConfig`.
        state: the model's variables.
        tables: the estimator's embedding tables, or None.
        looks_up: whether the step gets ids, and looks them up itself, not embeddings.

    Attributes:
        mode: one of `ModeKeys`.
        spec: result of the model_fn's first call, used for its functions and hooks; its tensors are traced and must not
            be used. None before that call.
    """

    mode: ClassVar[str]

    def __init__(
        self,
        model_fn: Callable,
        params: dict[str, Any],
        config: Any,
        state: ModelState,
        tables: EstimatorTables | None,
        looks_up: bool = False,
    ) -> None:
        self.model_fn, self._params, self.config = model_fn, params, config
        self.state, self.tables, self._looks_up = state, tables, looks_up
        self.spec: TPUEstimatorSpec | None = None
        self._made: list[str] = []
        self._optimizer_state: list[Any] = []

    def __call__(self, batch: tuple[Tree, Tree]) -> Tree:
        """Run one replica's step on (features, labels)."""
        with self.state.variables.call(makes=False) as call:
            return self._run(call, *batch)

    def add_tables(self, strategy: Callable[[], Any]) -> None:
        """Make the embedding tables, if there are some, and add them to the variables.

        Args:
            strategy: returns the strategy on whose cores they are.
        """
        if self.tables is not None:
            tables = self.tables.make(strategy())
            self.state.add_tables(tables.variables, tables.table_variables)

    def make(self, strategy: Any, batch: tuple[Tree, Tree]) -> Tree:
        """Make the variables, by tracing the model_fn.

        Args:
            strategy: the strategy that will run the step.
            batch: specs of the batches of all replicas, `(replicas, rows, ...)` each.

        Returns:
            Specs of the outputs, `(replicas, ...)` each.
        """
        replicas = strategy.num_replicas_in_sync
        scopes.install()
        scope = ReplicaScope([], makes_variables=True)

        def make_replica(batch: tuple[Tree, Tree]) -> Tree:
            scope.begins_here()
            with self.state.variables.call(makes=True) as call:
                outputs = self._make(call, *batch)
            self._made = call.names
            return outputs

        with value_within(CURRENT, strategy), scope, inside(Replica(replicas)):
            all_replicas = jax.vmap(make_replica, axis_name=REPLICA_AXIS, axis_size=replicas)
            outputs = jax.eval_shape(all_replicas, batch)
        self.state.settle(self.mode, self._made, scope.seen, self._optimizer_state)
        return outputs

    def _spec(self, features: Tree, labels: Tree) -> TPUEstimatorSpec:
        """Call the model_fn with one replica's batch; the caller is in the scope of the call.

        Raises:
            EstimatorError: there are labels and model_fn takes none. Or it does not return a `TPUEstimatorSpec` of the
                mode.
        """
        parameters = parameters_of(self.model_fn)
        available: dict[str, Any] = {"mode": self.mode, "params": copy.copy(self._params), "config": self.config}
        arguments = {name: value for name, value in available.items() if name in parameters}
        if "labels" in parameters:
            arguments["labels"] = labels
        elif labels is not None:
            raise EstimatorError(
                "model_fn does not take labels, but input_fn returns labels. Write "
                "def model_fn(features, labels, mode, params)"
            )
        if self.tables is not None and self._looks_up:
            features = self.tables.embedded_in_trace(features)
        spec = self.model_fn(features, **arguments)
        if not isinstance(spec, TPUEstimatorSpec):
            raise EstimatorError(
                f"estimator_spec used by TPU {_ACTIVITIES[self.mode]} must have type `TPUEstimatorSpec`. Got "
                f"{type(spec).__name__}: return tpu.TPUEstimatorSpec(mode, ...)"
            )
        if spec.mode != self.mode:
            raise EstimatorError(
                f"model_fn was called for mode {self.mode!r} and returned a TPUEstimatorSpec for {spec.mode!r}: "
                "pass on its argument mode"
            )
        if self.spec is None:
            self.spec = spec
        return spec

    @abc.abstractmethod
    def _run(self, call: ModelCall, features: Tree, labels: Tree) -> Tree:
        """Run the step."""

    def _make(self, call: ModelCall, features: Tree, labels: Tree) -> Tree:
        """Call the model_fn so that it makes its variables."""
        return self._run(call, features, labels)


@final
class TrainStep(ModelStep):
    """A training step. Its outputs are the replica's loss, the host_call's tensors, and gradients of embeddings."""

    mode = "train"

    def _run(self, call: ModelCall, features: Tree, labels: Tree) -> Tree:
        # 1. Call the model_fn inside the loss, so that its forward pass is differentiated.
        specs: list[TPUEstimatorSpec] = []

        def loss_fn(embeddings: Tree) -> tuple[Any, Tree]:
            with call.scope():
                spec, outputs = self._checked_spec({**features, **embeddings} if embeddings else features, labels)
                specs.append(spec)
                optimizer = spec.train_op.optimizer
                scale = optimizer.loss_scale() if isinstance(optimizer, CrossShardOptimizer) else 1.0
                return _scalar(spec.train_op.loss) * scale, outputs

        # 2. Differentiate by all trainable variables: the var_list of the spec is known only after the call.
        variables = self.state.trainable()
        if embeddings := self._embeddings(features):
            outputs, gradients, outputs_of_rows = grads_of_rows(loss_fn, variables, embeddings)
            outputs = {**outputs, EMBEDDING_GRADIENTS: outputs_of_rows}
        else:
            (_, outputs), gradients = value_and_grad_of_share(lambda: loss_fn({}), variables, has_aux=True)()
        # 3. Update the variables of the var_list.
        wanted = {id(variable) for variable in self._variables(call, specs[-1])}
        pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if id(v) in wanted]
        self._apply(call, specs[-1], [g for g, _ in pairs], [v for _, v in pairs])
        return outputs

    def _make(self, call: ModelCall, features: Tree, labels: Tree) -> Tree:
        with call.scope():
            spec, outputs = self._checked_spec(features, labels)
        if embeddings := self._embeddings(features):
            outputs[EMBEDDING_GRADIENTS] = embeddings
        variables = self._variables(call, spec)
        if not variables:
            raise EstimatorError(
                "No variables to optimize: model_fn makes no trainable variable, and none is in the var_list of "
                "optimizer.minimize"
            )
        # An update by zeros makes the variables of the optimizer.
        zeros = [SummedGradient(jnp.zeros(variable.shape, variable.dtype)) for variable in variables]
        self._optimizer_state = [call.original(v) for v in self._apply(call, spec, zeros, variables)]
        self.state.variables.is_trained = True
        return outputs

    def _checked_spec(self, features: Tree, labels: Tree) -> tuple[TPUEstimatorSpec, dict[str, Tree]]:
        """Return the spec with a train_op that is right, and its outputs."""
        spec = self._spec(features, labels)
        optimization.check_train_op(spec.train_op, self._params["use_tpu"])
        return spec, {
            "loss": _scalar(spec.loss),
            "host_call": _tensors("host_call", spec.host_call and spec.host_call[1]),
        }

    def _embeddings(self, features: Tree) -> dict[str, Any]:
        """Return the features that are embeddings."""
        return {} if self.tables is None else {name: features[name] for name in self.tables.names}

    def _variables(self, call: ModelCall, spec: TPUEstimatorSpec) -> list[Any]:
        """Return the variables to train: the spec's var_list, or else all trainable variables."""
        chosen = spec.train_op.variables
        return self.state.trainable() if chosen is None else [call.original(variable) for variable in chosen]

    def _apply(self, call: ModelCall, spec: TPUEstimatorSpec, gradients: list[Any], variables: list[Any]) -> list[Any]:
        """Update variables with the optimizer. Return the variables of the optimizer's state."""
        with call.scope():
            state = optimization.apply(spec.train_op, gradients, variables)
            self.state.variables.global_step.assign_add(1)
        return state


@final
class EvalStep(ModelStep):
    """An evaluation step. Its outputs are the replica's loss and the tensors of the eval_metrics."""

    mode = "eval"

    def _run(self, call: ModelCall, features: Tree, labels: Tree) -> Tree:
        with call.scope():
            spec = self._spec(features, labels)
            return {
                "loss": _scalar(spec.loss),
                "eval_metrics": _tensors("eval_metrics", _second(spec.eval_metrics)),
            }


@final
class PredictStep(ModelStep):
    """A prediction step. Its outputs are the predictions."""

    mode = "infer"

    def _run(self, call: ModelCall, features: Tree, labels: Tree) -> Tree:
        with call.scope():
            return _tensors("predictions", self._spec(features, None).predictions)


STEPS: dict[str, type[ModelStep]] = {step.mode: step for step in (TrainStep, EvalStep, PredictStep)}
"""The step of each mode."""


def _second(pair: HostPair | None) -> Any:
    return None if pair is None else pair[1]


def _tensors(name: str, tensors: Any) -> Tree:
    if tensors is None:
        return None
    check_batch_axis(name, tensors)
    if isinstance(tensors, dict):
        return {key: _array(tensor) for key, tensor in tensors.items()}
    return [_array(tensor) for tensor in tensors]


def _array(tensor: Any) -> jax.Array:
    return jnp.asarray(tensor.value if isinstance(tensor, keras.Variable) else tensor)


def _scalar(loss: Any) -> jax.Array:
    return _array(loss).reshape(())


_ACTIVITIES = {"train": "training", "eval": "evaluation", "infer": "prediction"}


def parameters_of(function: Callable) -> frozenset[str]:
    """Return the names of a function's parameters, without those bound by `functools.partial`."""
    return frozenset(inspect.signature(function).parameters)


def check_model_fn(model_fn: Any) -> None:
    """Reject an invalid model_fn.

    Raises:
        EstimatorError: `model_fn` is not callable, or does not take `features` and `params`.
    """
    if not callable(model_fn):
        raise EstimatorError(f"model_fn must be a function (features, labels, mode, params), not {model_fn!r}")
    parameters = parameters_of(model_fn)
    if "features" not in parameters:
        raise EstimatorError(f"model_fn ({name_of(model_fn)}) must include features argument")
    if "params" not in parameters:
        raise EstimatorError(
            f"model_fn ({name_of(model_fn)}) does not include params argument, required by TPUEstimator to pass batch "
            'size as params["batch_size"]: write def model_fn(features, labels, mode, params)'
        )
