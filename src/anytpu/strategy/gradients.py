"""Gradients inside a replica, already summed over all replicas.

Idea: `vmap(grad)` makes one weight gradient for each replica and adds them up afterwards: eight times the memory, and 22 times
the time for a large Dense layer. The sum of the losses has the same gradient, and differentiating that makes one. So
`value_and_grad` carries its own rule for `vmap`; on a mesh it differentiates the local loss and all-reduces.

Rule: what it returns is marked as summed. The mark is a pytree node around each gradient: `jax.tree.map` keeps it,
`optimizer.apply_gradients` takes it off and does not sum again, arithmetic on it raises and names the way out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
from jax.custom_batching import custom_vmap
from jax.extend.core import jaxpr_as_fun

from anytpu import _keras
from anytpu.errors import ReplicaError
from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.replicas import ReplicaScope, current_replica, is_mapped, is_on_mesh


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SummedGradient:
    """A gradient that is summed over the replicas already: `optimizer.apply_gradients` will not sum it again.

    Attributes:
        array: the gradient.
    """

    array: Any

    def _refuse(self, *_: Any) -> NoReturn:
        raise ReplicaError(
            "this gradient is already summed over the replicas, so arithmetic on it would be ambiguous: change all of them "
            "with jax.tree.map(fn, gradients), or ask for this replica's own gradients with "
            "tpu.value_and_grad(loss_fn, variables, local=True)"
        )

    __array__ = __jax_array__ = __float__ = __len__ = __iter__ = __getitem__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __neg__ = __abs__ = __matmul__ = __pow__ = _refuse


def value_and_grad(
    loss_fn: Callable[..., Any], variables: Sequence[Any], *, has_aux: bool = False, local: bool = False
) -> Callable[..., tuple[Any, list[Any]]]:
    """Return a function that computes a loss and its gradients with respect to Keras variables.

    Inside `strategy.run` the gradients are summed over all replicas (see the module's idea) unless `local` is set; outside
    they are plain arrays.

    Args:
        loss_fn: returns this replica's loss, a scalar; or `(loss, aux)` with `has_aux`. It may update other variables
            (BatchNorm statistics, metrics): the updates are kept.
        variables: Keras variables to differentiate by, for example `model.trainable_variables`.
        has_aux: `loss_fn` returns `(loss, aux)`.
        local: return this replica's own gradients, for example to clip them one replica at a time;
            `optimizer.apply_gradients` sums those.

    Returns:
        `fn(*args) -> (loss, gradients)` or `((loss, aux), gradients)`; one gradient for each variable, in order.

    Example:
        >>> weight = keras.Variable(3.0)
        >>> loss, (gradient,) = value_and_grad(lambda x: weight * weight * x, [weight])(2.0)
        >>> float(loss), float(gradient)
        (18.0, 12.0)
    """
    variables = list(variables)

    def call(*args: Any) -> tuple[Any, list[Any]]:
        loss_of, written = _pure(loss_fn, variables, has_aux)
        values = [variable.value for variable in variables]
        if current_replica() is None:
            (loss, (aux, updates)), gradients = jax.value_and_grad(loss_of, has_aux=True)(values, args)
        elif local:
            (loss, (aux, updates)), gradients = jax.value_and_grad(loss_of, has_aux=True)(values, args)
        elif is_on_mesh():
            (loss, (aux, updates)), gradients = jax.value_and_grad(loss_of, has_aux=True)(values, args)
            gradients = [SummedGradient(jax.lax.psum(gradient, REPLICA_AXIS)) for gradient in gradients]
        else:
            (loss, (aux, updates)), gradients = _summed(loss_of, values, args)
            gradients = [SummedGradient(gradient) for gradient in gradients]
        for variable, update in zip(written, updates, strict=True):
            variable.assign(update)
        return ((loss, aux) if has_aux else loss), gradients

    return call


def _pure(loss_fn: Callable, variables: list[Any], has_aux: bool) -> tuple[Callable, list[Any]]:
    """Return the loss as a function of arrays, and the list that its trace fills with the variables it wrote."""
    written: list[Any] = []

    def loss_of(values: list[Any], args: tuple) -> tuple[Any, tuple[Any, list[Any]]]:
        outer = _keras.stateless_scope()
        scope = ReplicaScope(list(zip(variables, values, strict=True)), outer)
        with scope:
            out = loss_fn(*args)
        loss, aux = out if has_aux else (out, None)
        updates = scope.written()
        written[:] = [variable for variable, _ in updates]
        return loss, (aux, [value for _, value in updates])

    return loss_of, written


def _summed(loss_of: Callable, values: list[Any], args: tuple) -> tuple[Any, list[Any]]:
    """Differentiate the sum of all replicas' losses.

    The loss is traced to a jaxpr first and everything that it captured is passed in: a `custom_vmap` function may not close
    over the tracers of the `vmap` around it.
    """
    closed, shape = jax.make_jaxpr(loss_of, return_shape=True)(values, args)
    into = jax.tree.structure(shape)
    flat_args = jax.tree.leaves(args)

    def loss(values: list[Any], rest: list[Any]) -> Any:
        consts, args = rest[: len(closed.consts)], rest[len(closed.consts) :]
        out = jaxpr_as_fun(closed.replace(consts=consts))(*values, *args)
        return jax.tree.unflatten(into, out)

    return _of_summed_loss(loss)(values, [*closed.consts, *flat_args])


def _of_summed_loss(loss: Callable) -> Callable:
    """Return `(values, rest) -> ((loss, aux), gradients summed over the replicas)` with its own rule for `vmap`."""
    replica = current_replica()
    assert replica is not None

    @custom_vmap
    def differentiate(values: list[Any], rest: list[Any]) -> Any:
        # Reached under vmap only when nothing differs between the replicas: the sum is so many times one of them.
        out, gradients = jax.value_and_grad(loss, has_aux=True)(values, rest)
        return out, jax.tree.map(lambda gradient: gradient * replica.replicas, gradients)

    @differentiate.def_vmap
    def over_replicas(axis_size: int, in_batched: Any, values: list[Any], rest: list[Any]) -> Any:
        axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched)
        mapped: list[bool] = []

        def lane(values: list[Any], rest: list[Any]) -> Any:
            out = loss(values, rest)
            mapped[:] = [is_mapped(leaf) for leaf in jax.tree.leaves(out)]
            return out

        lanes = jax.vmap(lane, in_axes=tuple(axes), axis_name=REPLICA_AXIS, axis_size=axis_size)

        def total(values: list[Any]) -> Any:
            out = lanes(values, rest)
            return out[0].sum(), out

        gradients, out = jax.grad(total, has_aux=True)(values)
        gradients = [g.sum(0) if batched else g for g, batched in zip(gradients, in_batched[0], strict=True)]
        # What is the same in every lane (a counter, a seed) leaves as one value, so that it can be state.
        leaves, tree = jax.tree.flatten(out)
        leaves = [leaf if batched else leaf[0] for leaf, batched in zip(leaves, mapped, strict=True)]
        return (tree.unflatten(leaves), gradients), (tree.unflatten(mapped), [False] * len(gradients))

    return differentiate

