"""`CrossShardOptimizer`: an optimizer whose gradients come from all shards.

Idea: a program for one core becomes one for eight when its optimizer sees the gradients of all eight. So the optimizer
is wrapped, and nothing else in the program changes.

Rule: gradients that are already summed over the replicas are marked so (`SummedGradient`), and are not summed again.
The number of shards is that of the replicas that run; nobody has to set it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import jax
import keras
import optax

from anytpu.errors import SettingError, SettingTypeError
from anytpu.strategy.collectives import Groups, check_groups, cross_replica_sum
from anytpu.strategy.gradients import SummedGradient, summed_value_and_grad, value_and_grad
from anytpu.strategy.reduction import ReduceOp
from anytpu.strategy.replicas import Replica, current_replica
from anytpu.train.low_level.shard_context import is_number_set
from anytpu.train.minimization import Minimization

_REDUCTIONS = {"mean": ReduceOp.MEAN, "sum": ReduceOp.SUM}
_OLD_REDUCTIONS = {"weighted_mean": ReduceOp.MEAN, "weighted_sum": ReduceOp.SUM}
_OUTSIDE = (
    "CrossShardOptimizer should be used within a tpu_shard_context, but got unset number_of_shards. Assuming 1. "
    "Nothing is summed here: pass the function that trains to tpu.shard, tpu.batch_parallel, tpu.rewrite or "
    "strategy.run, and the number of shards is that of the cores it runs on"
)


@final
class CrossShardOptimizer:
    """An optimizer that sums, or averages, the gradients of all shards before it applies them.

    Around an optimizer of optax it stands wherever that stood: it has `init` and `update`. Around one of Keras it has
    `apply_gradients`; whatever else is asked of it (`variables`, `learning_rate`) is asked of the optimizer inside.

    Args:
        opt: an optimizer of optax or of Keras.
        reduction: "mean" trains on the mean of the shards' losses, "sum" on their sum.
        group_assignment: lists of replica numbers: gradients stay within these groups, each of which then trains a
            model of its own. None is one group of all.

    Raises:
        SettingError: there is no such reduction, or this is no group assignment.
        SettingTypeError: `opt` is no optimizer, or is a `CrossShardOptimizer` already.

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
        """The optimizer inside."""
        return self._opt

    def loss_scale(self) -> float:
        """Return what a shard's loss is multiplied by before it is differentiated, so that the sum is the reduction."""
        return self._scale(current_replica()) or 1.0

    def init(self, params: Any) -> Any:
        """Return the state of the optax optimizer inside for a tree of parameters."""
        return self._optax("init").init(params)

    def update(self, grads: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        """Reduce each shard's gradients by `reduction`, and let the optax optimizer inside make updates of them.

        Args:
            grads: a tree of this shard's gradients, as `jax.grad` gives them. Those that are summed already, by
                `compute_gradients` or `tpu.value_and_grad`, are taken as they are.
            state: what `init` or the `update` before returned.
            params: the parameters, for optimizers that look at them.
            extra: further arguments of the optimizer inside.

        Returns:
            The updates, for `optax.apply_updates`, and the new state.
        """
        optimizer = self._optax("update")
        scale = self._scale(_replica())
        reduced = self._summed(grads)
        reduced = reduced if scale is None else _scaled(reduced, grads, scale)
        return optimizer.update(reduced, state, params, **extra)

    def compute_gradients(self, loss_fn: Callable[..., Any], params: Any, *, local: bool = False) -> Any:
        """Return the gradients of a loss; for the mean, of this shard's loss over the number of shards.

        Args:
            loss_fn: returns this shard's loss, a scalar: `loss_fn(params)` for a tree of arrays, `loss_fn()` for Keras
                variables.
            params: a tree of arrays, or a list of Keras variables.
            local: return this shard's own gradients, as the first TPUs did, for example to clip them one shard at a
                time: `apply_gradients` sums those. Without it they are summed here.

        Returns:
            A tree of gradients like `params`; for Keras variables a list of pairs (gradient, variable).
        """
        replica = _replica()
        scale = self._scale(replica)
        are_own = local or self._groups is not None
        if _are_variables(params):
            variables = list(params)
            _, gradients = value_and_grad(lambda: _times(loss_fn(), scale), variables, local=are_own)()
        else:
            gradients = _gradients(lambda tree: _times(loss_fn(tree), scale), params, replica, are_own)
        if self._groups is not None and not local:
            gradients = jax.tree.map(SummedGradient, cross_replica_sum(gradients, self._groups))
        return list(zip(gradients, variables, strict=True)) if _are_variables(params) else gradients

    def apply_gradients(self, gradients: Any, state: Any = None, params: Any = None) -> Any:
        """Sum the gradients over the shards, unless they are summed already, and apply them. Nothing is scaled here.

        Args:
            gradients: for a Keras optimizer pairs (gradient, variable); for one of optax a tree of gradients.
            state: the state of the optax optimizer.
            params: its parameters.

        Returns:
            The pair of the new parameters and the new state of an optax optimizer; None for one of Keras.

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
        """Record that a loss is to be minimised, for the `train_op` of a `TPUEstimatorSpec`.

        Args:
            loss: the loss.
            global_step: is counted by itself; taken so that old programs run.
            var_list: the variables to change; None is all that are trainable.
        """
        return Minimization(self, loss, None if var_list is None else tuple(var_list))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._opt, name)

    def __iter__(self) -> Iterator[Callable]:
        """Yield `init` and `update`: optax takes transformations apart when it chains them."""
        return iter((self.init, self.update))

    def __repr__(self) -> str:
        groups = "" if self._groups is None else f", group_assignment={self._groups!r}"
        return f"CrossShardOptimizer({_name(self._opt)}, reduction={self._reduction.value.lower()!r}{groups})"

    def _optax(self, method: str) -> Any:
        if isinstance(self._opt, keras.optimizers.Optimizer):
            raise SettingError(
                f"{method} is for an optimizer of optax, and this one is around {_name(self._opt)} of Keras: type "
                "optimizer.apply_gradients(zip(gradients, variables))"
            )
        return self._opt

    def _scale(self, replica: Replica | None) -> float | None:
        """Return what makes a mean of a sum; None where there is nothing to do."""
        if replica is None or self._reduction is ReduceOp.SUM:
            return None
        shards = replica.replicas if self._groups is None else len(self._groups[0])
        return None if shards == 1 else 1 / shards

    def _summed(self, gradients: Any) -> Any:
        """Return a tree of gradients without marks, each summed over the shards once."""
        return jax.tree.map(
            lambda leaf: leaf.array if _is_summed(leaf) else cross_replica_sum(leaf, self._groups),
            gradients,
            is_leaf=_is_summed,
        )

    def _marked(self, gradient: Any, replica: Replica | None) -> Any:
        """Return a gradient for Keras's `apply_gradients`, which sums over all replicas what has no mark."""
        if gradient is None or self._groups is None or replica is None or _is_summed(gradient):
            return gradient
        return SummedGradient(cross_replica_sum(gradient, self._groups))


def _gradients(loss_of: Callable, params: Any, replica: Replica | None, are_own: bool) -> Any:
    """Return the gradients by a tree of arrays: this shard's own, or summed over the shards and marked."""
    if are_own or replica is None or replica.axis is None:
        return jax.grad(loss_of)(params)
    values, tree = jax.tree.flatten(params)
    _, gradients = summed_value_and_grad(lambda arrays: (loss_of(tree.unflatten(arrays)), ()), values)
    return tree.unflatten([SummedGradient(one) for one in gradients])


def _times(loss: Any, scale: float | None) -> Any:
    return loss if scale is None else loss * scale


def _scaled(summed: Any, given: Any, scale: float) -> Any:
    """Scale the gradients that came without a mark."""
    marks = jax.tree.map(_is_summed, given, is_leaf=_is_summed)
    return jax.tree.map(lambda is_marked, leaf: leaf if is_marked else leaf * scale, marks, summed)


def _is_summed(leaf: Any) -> bool:
    return isinstance(leaf, SummedGradient)


def _are_variables(params: Any) -> bool:
    return isinstance(params, list | tuple) and bool(params) and all(isinstance(v, keras.Variable) for v in params)


def _replica() -> Replica | None:
    replica = current_replica()
    if replica is None and not is_number_set():
        warnings.warn(_OUTSIDE, stacklevel=3)
    return replica


def _checked_optimizer(opt: Any) -> Any:
    if isinstance(opt, CrossShardOptimizer):
        raise SettingTypeError(f"{opt!r} sums over the shards already: wrap an optimizer once")
    is_optax = callable(getattr(opt, "init", None)) and callable(getattr(opt, "update", None))
    if is_optax or isinstance(opt, keras.optimizers.Optimizer):
        return opt
    raise SettingTypeError(
        f"CrossShardOptimizer works with an optimizer of optax or of Keras, not with {opt!r}: for example "
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
