"""`CrossShardOptimizer`: an optimizer that reduces the gradients of all shards.

Idea: a program for one core trains on eight if its optimizer gets the reduced gradients of all eight. So the optimizer
is wrapped, and nothing else in the program changes.

Rule: gradients already summed over the replicas are marked (`SummedGradient`), and are not summed again. The number of
shards is the number of running replicas; it need not be set.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import jax
import keras
import optax

from anytpu._calls import explain_methods, users_stacklevel
from anytpu.errors import SettingError, SettingTypeError
from anytpu.migrate.low_level.session import is_number_set
from anytpu.strategy.collectives import Groups, ReduceOp, check_groups, cross_replica_sum
from anytpu.strategy.gradients import summed_value_and_grad, value_and_grad_of_share
from anytpu.strategy.replicas import Replica, current_replica
from anytpu.strategy.summed import SummedGradient

_REDUCTIONS = {"mean": ReduceOp.MEAN, "sum": ReduceOp.SUM}
_OLD_REDUCTIONS = {"weighted_mean": ReduceOp.MEAN, "weighted_sum": ReduceOp.SUM}
_OUTSIDE = (
    "CrossShardOptimizer should be used within a tpu_shard_context, but got unset number_of_shards. Assuming 1. "
    "Nothing is summed here: pass the function that trains to tpu.shard, tpu.batch_parallel, tpu.rewrite or "
    "strategy.run, and the number of shards is that of the cores it runs on"
)


@explain_methods
@final
class CrossShardOptimizer:
    """An optimizer that sums, or averages, the gradients of all shards before it applies them.

    Around an optax optimizer it has `init` and `update`, and replaces it anywhere. Around a Keras optimizer it has
    `apply_gradients`. Other attributes (`variables`, `learning_rate`) are those of the wrapped optimizer.

    Args:
        opt: an optax or Keras optimizer.
        reduction: "mean" trains on the mean of the shards' losses, "sum" on their sum.
        group_assignment: lists of replica indices. Gradients are reduced within each group, so each group trains its
            own model. None is one group of all replicas.

    Raises:
        SettingError: `reduction` or `group_assignment` is invalid.
        SettingTypeError: `opt` is not an optimizer, or is already a `CrossShardOptimizer`.

    Example:
        >>> optimizer = CrossShardOptimizer(optax.sgd(0.5))
        >>> def train(weight, x):
        ...     gradient = jax.grad(lambda weight: (weight * x).mean())(weight)
        ...     updates, _ = optimizer.update(gradient, optimizer.init(weight))
        ...     return optax.apply_updates(weight, updates)
        >>> initialize_system(TPUClusterResolver("virtual", cores=2)).name
        '2 virtual cores'
        >>> float(shard(train, [2.0, np.arange(4.0)], input_shard_axes=[None, 0], outputs_from_all_shards=False)[0])
        1.25
    """

    def __init__(self, opt: Any, reduction: Any = "mean", group_assignment: Groups | None = None) -> None:
        self._opt = _checked_optimizer(opt)
        self._reduction = _checked_reduction(reduction)
        if group_assignment is not None:
            check_groups(group_assignment)
        self._groups = group_assignment

    @property
    def opt(self) -> Any:
        """The wrapped optimizer."""
        return self._opt

    def loss_scale(self) -> float:
        """Return the factor for a shard's loss, so that the sum of the shards' gradients is the reduction."""
        return self._scale(current_replica()) or 1.0

    def init(self, params: Any) -> Any:
        """Return the state of the wrapped optax optimizer for a tree of parameters."""
        return self._optax("init").init(params)

    def update(self, grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        """Reduce the shards' gradients by `reduction`, and compute updates with the wrapped optax optimizer.

        Args:
            grads: a tree of this shard's gradients, as `jax.grad` returns them. Gradients already summed, by
                `compute_gradients` or `tpu.value_and_grad`, are used without change.
            state: the state returned by `init` or the previous `update`.
            params: the parameters, for optimizers that need them.
            extra: further arguments of the wrapped optimizer.

        Returns:
            The updates, for `optax.apply_updates`, and the new state.
        """
        optimizer = self._optax("update")
        return optimizer.update(self._summed(grads, self._scale(_replica())), state, params, **extra)

    def compute_gradients(self, loss_fn: Callable[..., Any], params: Any, *, local: bool = False) -> Any:
        """Return the gradients of a loss. For "mean", this shard's loss is first divided by the number of shards.

        Args:
            loss_fn: returns this shard's loss, a scalar: `loss_fn(params)` for a tree of arrays, `loss_fn()` for Keras
                variables.
            params: a tree of arrays, or a list of Keras variables.
            local: True returns this shard's own gradients, as the first TPUs did, for example to clip them by shard;
                `apply_gradients` then sums them. False sums them here.

        Returns:
            A tree of gradients shaped like `params`; for Keras variables a list of pairs (gradient, variable).
        """
        replica = _replica()
        scale = self._scale(replica)
        is_local = local or self._groups is not None
        if _are_variables(params):
            variables = list(params)
            _, gradients = value_and_grad_of_share(lambda: _times(loss_fn(), scale), variables, local=is_local)()
        else:
            gradients = _gradients(lambda tree: _times(loss_fn(tree), scale), params, replica, is_local)
        if self._groups is not None and not local:
            gradients = jax.tree.map(SummedGradient, cross_replica_sum(gradients, self._groups))
        return list(zip(gradients, variables, strict=True)) if _are_variables(params) else gradients

    def apply_gradients(self, gradients: Any, state: Any = None, params: Any = None) -> Any:
        """Sum the gradients over the shards, unless already summed, and apply them without scaling.

        Args:
            gradients: pairs (gradient, variable) for a Keras optimizer; a tree of gradients for an optax optimizer.
            state: the state of the optax optimizer.
            params: the parameters of the optax optimizer.

        Returns:
            The pair of new parameters and new state for an optax optimizer; None for a Keras optimizer.

        Raises:
            SettingError: `state` or `params` is missing for an optax optimizer.
        """
        replica = _replica()
        if isinstance(self._opt, keras.optimizers.Optimizer):
            pairs = list(gradients)
            return self._opt.apply_gradients([(self._marked(gradient, replica), v) for gradient, v in pairs])
        if state is None or params is None:
            raise SettingError(
                "an optax optimizer needs its state and the parameters: params, state = "
                "optimizer.apply_gradients(gradients, state, params)"
            )
        updates, state = self._opt.update(self._summed(gradients), state, params)
        return optax.apply_updates(params, updates), state

    def minimize(self, loss: Any, global_step: Any = None, var_list: Iterable[Any] | None = None) -> Minimization:
        """Record a request to minimise a loss, for the `train_op` of a `TPUEstimatorSpec`.

        Args:
            loss: the loss, a scalar.
            global_step: ignored, since the step is counted automatically; accepted for old programs.
            var_list: the variables to update; None is all trainable variables.
        """
        return Minimization(self, loss, None if var_list is None else tuple(var_list))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._opt, name)

    def __iter__(self) -> Iterator[Callable]:
        """Yield `init` and `update`: optax unpacks transformations when it chains them."""
        return iter((self.init, self.update))

    def __repr__(self) -> str:
        groups = "" if self._groups is None else f", group_assignment={self._groups!r}"
        return f"CrossShardOptimizer({_name(self._opt)}, reduction={self._reduction.value.lower()!r}{groups})"

    def _optax(self, method: str) -> Any:
        if isinstance(self._opt, keras.optimizers.Optimizer):
            raise SettingError(
                f"{method} is for an optax optimizer, and this one wraps {_name(self._opt)} of Keras: type "
                "optimizer.apply_gradients(zip(gradients, variables))"
            )
        return self._opt

    def _scale(self, replica: Replica | None) -> float | None:
        """Return the factor from sum to mean; None if no scaling is needed."""
        if replica is None or self._reduction is ReduceOp.SUM:
            return None
        shards = replica.replicas if self._groups is None else len(self._groups[0])
        return None if shards == 1 else 1 / shards

    def _summed(self, gradients: Any, scale: float | None = None) -> Any:
        """Return gradients without marks, each summed over the shards exactly once, and scaled if it is summed here."""

        def total(leaf: Any) -> Any:
            return leaf.array if _is_summed(leaf) else _times(cross_replica_sum(leaf, self._groups), scale)

        return jax.tree.map(total, gradients, is_leaf=_is_summed)

    def _marked(self, gradient: Any, replica: Replica | None) -> Any:
        """Return a gradient for Keras's `apply_gradients`, which sums unmarked gradients over all replicas."""
        if gradient is None or self._groups is None or replica is None or _is_summed(gradient):
            return gradient
        return SummedGradient(cross_replica_sum(gradient, self._groups))


def _gradients(loss_of: Callable, params: Any, replica: Replica | None, is_local: bool) -> Any:
    """Return the gradients with respect to a tree of arrays: this shard's own, or summed over the shards and marked."""
    if is_local or replica is None or replica.axis is None:
        return jax.grad(loss_of)(params)
    values, tree = jax.tree.flatten(params)
    _, gradients = summed_value_and_grad(lambda arrays: (loss_of(tree.unflatten(arrays)), ()), values)
    return tree.unflatten([SummedGradient(gradient) for gradient in gradients])


def _times(loss: Any, scale: float | None) -> Any:
    return loss if scale is None else loss * scale


def _is_summed(leaf: Any) -> bool:
    return isinstance(leaf, SummedGradient)


def _are_variables(params: Any) -> bool:
    return isinstance(params, list | tuple) and bool(params) and all(isinstance(v, keras.Variable) for v in params)


def _replica() -> Replica | None:
    replica = current_replica()
    if replica is None and not is_number_set():
        warnings.warn(_OUTSIDE, stacklevel=users_stacklevel())
    return replica


def _checked_optimizer(opt: Any) -> Any:
    if isinstance(opt, CrossShardOptimizer):
        raise SettingTypeError(f"{opt!r} sums over the shards already: wrap an optimizer once")
    is_optax = callable(getattr(opt, "init", None)) and callable(getattr(opt, "update", None))
    if is_optax or isinstance(opt, keras.optimizers.Optimizer):
        return opt
    raise SettingTypeError(
        f"CrossShardOptimizer works with an optax or Keras optimizer, not with {opt!r}: for example "
        "tpu.CrossShardOptimizer(optax.sgd(0.01))"
    )


def _checked_reduction(reduction: Any) -> ReduceOp:
    if isinstance(reduction, ReduceOp):
        return reduction
    known = _REDUCTIONS | _OLD_REDUCTIONS
    if isinstance(reduction, str) and reduction.lower() in known:
        return known[reduction.lower()]
    raise SettingError(f'unsupported reduction: {reduction!r}. It must be "mean" or "sum"')


def _name(opt: Any) -> str:
    return type(opt).__name__


@dataclasses.dataclass(frozen=True, eq=False)
class Minimization:
    """A loss to minimise, and its optimizer.

    Attributes:
        optimizer: the optimizer whose `minimize` was called.
        loss: the traced loss, a scalar.
        variables: the variables to update, or None for all trainable variables.
    """

    optimizer: Any
    loss: Any
    variables: tuple[Any, ...] | None = None
