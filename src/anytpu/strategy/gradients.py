"""Gradients inside a replica, already summed over all replicas.

Idea: `vmap(grad)` makes one weight gradient for each replica and sums them afterwards. With 8 replicas that takes eight
times the memory, and it took 20 times the time (docs/decisions/0011-custom-loops.md: 654 ms against 33 ms, Dense of
4096 x 1024 on 64 rows, 8 virtual cores). The sum of the losses has the same gradient, and its differentiation makes one
array. So `value_and_grad` has a custom rule for `vmap`; on a mesh it differentiates the local
loss and all-reduces.

Rule: the gradient of a Keras variable is marked as summed (`summed.py`), and `optimizer.apply_gradients` does not sum
it again. The gradients of a tree of arrays are plain arrays, as optax needs them; `all_reduce` of the replica context
rejects them, because it would sum them again.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from anytpu import _jax, _keras
from anytpu._calls import explain_arguments, users_stacklevel
from anytpu.errors import ReplicaError, SettingError
from anytpu.program.jaxprs import level_of
from anytpu.program.program import REPLICA_AXIS
from anytpu.program.summed_products import sums_over_replicas
from anytpu.strategy.assignments import write_back
from anytpu.strategy.loss_shares import is_whole
from anytpu.strategy.replicas import BuildScope, Replica, ReplicaScope, current_replica
from anytpu.strategy.summed import SummedGradient
from anytpu.strategy.uneven.recorded import record_gradients
from anytpu.strategy.uneven.step import is_on_mesh
from anytpu.units import MIB, format_bytes

_MIN_SUMMED_BYTES = 4 * MIB
"""Minimum bytes of one replica's sums for a warning: smaller sums are fast."""


@explain_arguments
def value_and_grad(
    loss_fn: Callable[..., Any], variables: Any, *, has_aux: bool = False, local: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that computes a loss and its gradients with respect to Keras variables or a tree of arrays.

    Inside `strategy.run` the gradients are summed over all replicas (see the module's idea) unless `local` is set.
    With the loss as a share of the whole batch, `tpu.compute_average_loss(losses)`, they are those of the whole batch.
    A loss that is equal on all replicas, as after `jax.lax.psum` or `all_reduce`, is the loss of the whole batch, and
    counts once. A mean over one replica's rows is neither, and is refused.

    Args:
        loss_fn: returns this replica's share of the loss, or the loss of the whole batch, a scalar; or `(loss, aux)`
            with `has_aux`. It may update other variables (BatchNorm statistics, metrics): the updates are kept. For a
            tree of arrays it takes the tree first.
        variables: the differentiated values: a Keras variable, or a list of them, such as `model.trainable_variables`;
            or a tree of arrays, equal on every replica: a dictionary, the state of `nnx.split`, an Equinox module.
            For several losses, as of a GAN: one list of variables for each loss; `loss_fn` then returns a tuple of
            losses. For embeddings from `TPUEmbedding.dequeue` the gradients cover this replica's rows only.
        has_aux: `loss_fn` returns `(loss, aux)`.
        local: return this replica's own gradients, for example to clip them one replica at a time;
            `optimizer.apply_gradients` sums those of Keras variables.

    Returns:
        `fn(*args, **kwargs) -> (loss, gradients)` or `((loss, aux), gradients)`. The gradients are one array, or a list
        of one for each Keras variable, or a tree like `variables`. A leaf that is not an array of floating-point
        numbers has None. With several losses, a tuple of losses and one of their lists of gradients.

    Raises:
        SettingError: `variables` are neither Keras variables nor a tree with an array of floating-point numbers.
        ReplicaError: (when it is called) the loss is not a scalar, or there is not one for each list of variables.
            Or it is a mean over this replica's rows, or adds a term that is equal on all replicas to a share.

    Example:
        >>> weight = keras.Variable(3.0)
        >>> loss, (gradient,) = value_and_grad(lambda x: weight * weight * x, [weight])(2.0)
        >>> float(loss), float(gradient)
        (18.0, 12.0)
        >>> loss, gradients = value_and_grad(lambda params, x: params["w"] ** 2 * x, {"w": jnp.array(3.0)})(2.0)
        >>> float(loss), float(gradients["w"])
        (18.0, 12.0)
        >>> losses, gradients = value_and_grad(lambda: (weight**2, -weight), [[weight], [weight]])()
        >>> [float(gradient) for (gradient,) in gradients]
        [6.0, -1.0]
    """
    scope = _keras.stateless_scope()
    if not isinstance(scope, BuildScope) or not _are_variables(variables):
        return _differentiator(loss_fn, variables, has_aux, local)

    def build_first(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        scope.build(lambda: loss_fn(*args, **kwargs))
        return _differentiator(loss_fn, variables, has_aux, local)(*args, **kwargs)

    return build_first


def _differentiator(loss_fn: Callable, variables: Any, has_aux: bool, local: bool) -> Callable:
    if _are_groups(variables):
        return _several(loss_fn, [_Parameters.of(group) for group in variables], has_aux, local)
    return value_and_grad_of_share(loss_fn, variables, has_aux, local, is_share=False)


def value_and_grad_of_share(
    loss_fn: Callable, variables: Any, has_aux: bool = False, local: bool = False, *, is_share: bool = True
) -> Callable[..., tuple[Any, Any]]:
    """Return `value_and_grad` of a loss whose sum over the replicas is differentiated.

    Args:
        loss_fn: as in `value_and_grad`.
        variables: as in `value_and_grad`, without lists of variables.
        has_aux: as in `value_and_grad`.
        local: as in `value_and_grad`.
        is_share: the caller knows that the loss is a share; False asks the trace (`loss_shares.py`).
    """
    is_one = isinstance(variables, keras.Variable)
    parameters = _Parameters.of([variables] if is_one else variables)

    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        loss, aux, gradients, updates = _differentiate(loss_fn, parameters, args, kwargs, has_aux, local, is_share)
        for variable, update in updates:
            write_back(variable, update)
        return ((loss, aux) if has_aux else loss), gradients[0] if is_one else gradients

    return call


def _are_variables(variables: Any) -> bool:
    """Return whether there are only Keras variables, or none, as in the list of a layer that is not built."""
    return all(isinstance(leaf, keras.Variable) for leaf in jax.tree.leaves(variables))


def _are_groups(variables: Any) -> bool:
    """Return whether there are several lists of Keras variables, one for each of several losses."""
    groups = variables if isinstance(variables, list | tuple) else ()
    return bool(groups) and all(
        isinstance(group, list | tuple) and group and all(isinstance(part, keras.Variable) for part in group)
        for group in groups
    )


def _several(loss_fn: Callable, groups: list[_Parameters], has_aux: bool, local: bool) -> Callable:
    """Return a function that computes several losses, and the gradients of each by its own variables.

    Each loss is differentiated from the same state, so all see the same random numbers, and the compiler merges the
    equal forward passes. The updates of other variables are written once.
    """

    def loss_at(index: int) -> Callable:
        def loss_of(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
            out = loss_fn(*args, **kwargs)
            losses = out[0] if has_aux else out
            count = len(losses) if isinstance(losses, list | tuple) else 1
            if count != len(groups):
                raise ReplicaError(
                    f"loss_fn must return a tuple of {len(groups)} losses, one for each list of variables, and it "
                    f"returned {count}"
                )
            return losses[index], out

        return loss_of

    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        parts = [
            _differentiate(loss_at(index), group, args, kwargs, has_aux=True, local=local)
            for index, group in enumerate(groups)
        ]
        for variable, update in parts[0].updates:
            write_back(variable, update)
        return parts[0].aux, tuple(part.gradients for part in parts)

    return call


class _Differentiated(NamedTuple):
    """The result of one differentiation.

    Attributes:
        loss: the loss, a scalar.
        aux: the other output of the loss function.
        gradients: one for each variable, or a tree of them.
        updates: pairs of a variable that the loss function wrote, and its new value; nothing is written yet.
    """

    loss: Any
    aux: Any
    gradients: Any
    updates: list[tuple[Any, Any]]


def _differentiate(
    loss_fn: Callable,
    parameters: _Parameters,
    args: tuple,
    kwargs: dict,
    has_aux: bool,
    local: bool,
    is_share: bool = False,
) -> _Differentiated:
    loss_of_values = functools.partial(parameters.loss, loss_fn, args, kwargs)
    loss_of, written = _pure_loss(loss_of_values, parameters.assigned, has_aux)
    replica = current_replica()
    local = local or parameters.are_own_rows(replica)
    if local or replica is None or replica.axis is None:
        (loss, (aux, updates)), arrays = jax.value_and_grad(loss_of, has_aux=True)(parameters.values())
    else:
        values = parameters.values()
        if is_share or replica.replicas == 1:
            (loss, (aux, updates)), arrays = summed_value_and_grad(loss_of, values)
        else:
            share_of = _as_share(loss_of, values, loss_fn, replica)
            (_, (loss, (aux, updates))), arrays = summed_value_and_grad(share_of, values)
        # Mark the gradients of Keras variables, and record the plain gradients of a tree.
        if parameters.tree is None:
            arrays = [SummedGradient(array) for array in arrays]
        else:
            replica.summed.extend(arrays)
    return _Differentiated(loss, aux, parameters.gradients(arrays), list(zip(written, updates, strict=True)))


def _as_share(loss_of: Callable, values: list[Any], loss_fn: Callable, replica: Replica) -> Callable:
    """Return the share of a loss, the loss divided by the replicas if it is equal on all of them, and its results."""
    closed, shape = jax.make_jaxpr(loss_of, return_shape=True)(values)
    divisor = replica.replicas if is_whole(closed, values, loss_fn, replica) else 1
    structure = jax.tree.structure(shape)

    def share_of(values: list[Any]) -> Any:
        loss, others = structure.unflatten(jaxpr_as_fun(closed)(*values))
        return loss / divisor, (loss, others)

    return share_of


def grads_of_rows(loss_fn: Callable[[Any], tuple[Any, Any]], variables: list[Any], rows: Any) -> tuple[Any, Any, Any]:
    """Differentiate a loss by variables, which all replicas share, and by the rows of the current replica.

    Args:
        loss_fn: takes the rows, and returns this replica's loss and a tree of other arrays.
        variables: Keras variables.
        rows: a tree of arrays with the rows of this replica.

    Returns:
        The other arrays, the gradients of the variables summed over the replicas, and those of the rows, as a tree.
    """
    replica, parameters = current_replica(), _Parameters.of(variables)
    assert replica is not None
    leaves, form = jax.tree.flatten(rows)
    # One summed gradient has the rows of all replicas: each adds its own part of an array of zeros to its rows.
    zeros = [jnp.zeros((replica.replicas, *leaf.shape), leaf.dtype) for leaf in leaves]

    def loss_of_values(values: list[Any]) -> Any:
        offsets = values[len(variables) :]
        return loss_fn(form.unflatten([leaf + zero[replica.index] for leaf, zero in zip(leaves, offsets, strict=True)]))

    loss_of, written = _pure_loss(loss_of_values, lambda values: parameters.assigned(values[: len(variables)]), True)
    is_alone = replica.axis is None
    values = [*parameters.values(), *zeros]
    (_, (aux, updates)), gradients = (
        jax.value_and_grad(loss_of, has_aux=True)(values) if is_alone else summed_value_and_grad(loss_of, values)
    )
    for variable, update in zip(written, updates, strict=True):
        write_back(variable, update)
    own = [gradient[replica.index] for gradient in gradients[len(variables) :]]
    summed = [gradient if is_alone else SummedGradient(gradient) for gradient in gradients[: len(variables)]]
    return aux, summed, form.unflatten(own)


def summed_value_and_grad(loss_of: Callable, values: list[Any]) -> tuple[Any, list[Any]]:
    """Return the loss of this replica and the gradients summed over the replicas. Call it inside a replica.

    Args:
        loss_of: takes the list of arrays `values`, and returns a pair: the loss, a scalar, and a tree of other arrays.
        values: the arrays to differentiate by; the same on every replica.

    Returns:
        The result of `loss_of`, and one gradient for each array.
    """
    replica = current_replica()
    if replica is not None and replica.shard is not None and replica.shard.is_recorded:
        return record_gradients(loss_of, values)
    return (_on_mesh if is_on_mesh() else _over_lanes)(loss_of, values)


@dataclasses.dataclass(frozen=True)
class _Parameters:
    """The values to differentiate by: Keras variables, or a tree of arrays, the first argument of the loss.

    Attributes:
        leaves: the variables, or the leaves of the tree.
        tree: the structure of the tree; None for Keras variables.
        indices: the indices of the leaves that are arrays of floating-point numbers, or of all variables.
    """

    leaves: list[Any]
    tree: Any
    indices: list[int]

    @classmethod
    def of(cls, variables: Any) -> _Parameters:
        listed = list(variables) if isinstance(variables, list | tuple | Iterator) else []
        if listed and all(isinstance(variable, keras.Variable) for variable in listed):
            return cls(listed, None, list(range(len(listed))))
        leaves, tree = jax.tree.flatten(variables)
        indices = [
            index
            for index, leaf in enumerate(leaves)
            if isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.inexact)
        ]
        if not indices or any(isinstance(leaf, keras.Variable) for leaf in leaves):
            raise SettingError(
                "variables must be a list of Keras variables, such as model.trainable_variables, or a tree with arrays "
                f"of floating-point numbers, such as the parameters of a JAX model, not {variables!r}"
            )
        return cls(leaves, tree, indices)

    def values(self) -> list[Any]:
        if self.tree is None:
            return [variable.value for variable in self.leaves]
        return [self.leaves[index] for index in self.indices]

    def are_own_rows(self, replica: Any) -> bool:
        """Return whether the values are embeddings of this replica's rows, whose gradients are not to be summed.

        Raises:
            ReplicaError: some are, and some are not.
        """
        if self.tree is None or replica is None or not replica.own_rows:
            return False
        known = {id(array) for array in replica.own_rows}
        are_own = {id(value) in known for value in self.values()}
        if len(are_own) > 1:
            raise ReplicaError(
                "the tree has embeddings of TPUEmbedding.dequeue, which differ between the replicas, and arrays that "
                "all replicas share: differentiate by each in a call of its own"
            )
        return are_own == {True}

    def assigned(self, values: list[Any]) -> list[tuple[Any, Any]]:
        """Return the pairs of a Keras variable and its value while the loss is computed."""
        return list(zip(self.leaves, values, strict=True)) if self.tree is None else []

    def loss(self, loss_fn: Callable, args: tuple, kwargs: dict, values: list[Any]) -> Any:
        """Return the loss; the surrounding scope assigns the values to Keras variables."""
        if self.tree is None:
            return loss_fn(*args, **kwargs)
        leaves = list(self.leaves)
        for index, value in zip(self.indices, values, strict=True):
            leaves[index] = value
        return loss_fn(self.tree.unflatten(leaves), *args, **kwargs)

    def gradients(self, arrays: list[Any]) -> Any:
        """Return one gradient for each variable, or a tree of gradients."""
        if self.tree is None:
            return arrays
        gradients = dict(zip(self.indices, arrays, strict=True))
        return self.tree.unflatten([gradients.get(index) for index in range(len(self.leaves))])


def _pure_loss(loss_fn: Callable[[list[Any]], Any], assigned: Callable, has_aux: bool) -> tuple[Callable, list[Any]]:
    """Return the loss as a pure function of arrays, and a list that its trace fills with the written variables.

    Args:
        loss_fn: takes the arrays.
        assigned: returns, for the arrays, pairs of a Keras variable and its value during the call.
        has_aux: `loss_fn` returns `(loss, aux)`.
    """
    written: list[Any] = []

    def loss_of(values: list[Any]) -> tuple[Any, tuple[Any, list[Any]]]:
        scope = ReplicaScope(assigned(values), _keras.stateless_scope())
        with scope:
            out = loss_fn(values)
        loss, aux = out if has_aux else (out, None)
        if jnp.shape(loss) != ():
            raise ReplicaError(
                f"loss_fn must return one number, and it returned an array of shape {jnp.shape(loss)}: take "
                "tpu.compute_average_loss(losses) inside strategy.run, or keras.ops.mean(losses) outside of it"
            )
        updates = scope.written()
        written[:] = [variable for variable, _ in updates]
        return loss, (aux, [value for _, value in updates])

    return loss_of, written


def _on_mesh(loss_of: Callable, values: list[Any]) -> tuple[Any, list[Any]]:
    """Differentiate this device's loss, and sum the gradients over the devices."""
    out, gradients = jax.value_and_grad(loss_of, has_aux=True)(values)
    return out, jax.lax.psum(gradients, REPLICA_AXIS)


def _over_lanes(loss_of: Callable, values: list[Any]) -> tuple[Any, list[Any]]:
    """Differentiate the sum of the losses of all lanes of a `vmap`.

    The loss is traced to a jaxpr first, and its captured arrays become arguments. A `custom_vmap` function must not
    close over tracers of the surrounding `vmap`.
    """
    closed, shape = jax.make_jaxpr(loss_of, return_shape=True)(values)
    structure = jax.tree.structure(shape)

    def loss(values: list[Any], captured: list[Any]) -> Any:
        return structure.unflatten(jaxpr_as_fun(closed.replace(consts=captured[1:]))(*values))

    # Pass the replica index too. `vmap` applies the rule below only if an argument differs between the replicas, and
    # without the rule a use of the axis name in the loss would fail.
    return _of_summed_losses(loss)(values, [jax.lax.axis_index(REPLICA_AXIS), *closed.consts])


def _of_summed_losses(loss: Callable) -> Callable:
    """Return `(values, rest) -> ((loss, aux), gradients)`, whose rule for `vmap` sums the gradients over the lanes."""

    @custom_vmap
    def differentiate(values: list[Any], rest: list[Any]) -> Any:
        return jax.value_and_grad(loss, has_aux=True)(values, rest)

    @differentiate.def_vmap
    def over_lanes(axis_size: int, in_batched: Any, values: list[Any], rest: list[Any]) -> Any:
        axes = jax.tree.map(lambda batched: 0 if batched else None, in_batched)
        if not in_batched[1][0]:
            # The index of the replica is the same in all lanes, so this is a `vmap` of the user.
            return _in_vmap(loss, axis_size, in_batched, values, rest)
        # Inside a lane, `is_mapped` shows which outputs differ between the lanes. Outside, `vmap` has stacked all of
        # them.
        mapped: list[bool] = []

        def lane(values: list[Any], rest: list[Any]) -> Any:
            out = loss(values, rest)
            mapped[:] = [_jax.is_mapped(leaf) for leaf in jax.tree.leaves(out)]
            return out

        lanes = jax.vmap(lane, in_axes=tuple(axes), axis_name=REPLICA_AXIS, axis_size=axis_size)

        # The sum over the lanes is differentiated, so the gradient of a value that the lanes share is one array.
        def summed_loss(values: list[Any]) -> Any:
            out = lanes(values, rest)
            return out[0].sum(), out

        gradients, out = jax.grad(summed_loss, has_aux=True)(values)
        # A value that differs between the lanes has a gradient for each of them.
        gradients = [g.sum(0) if batched else g for g, batched in zip(gradients, in_batched[0], strict=True)]
        # Outputs that are equal in every lane (a counter, a seed) are returned unbatched, so that they can be state.
        leaves, tree = jax.tree.flatten(out)
        leaves = [leaf if batched else leaf[0] for leaf, batched in zip(leaves, mapped, strict=True)]
        return (tree.unflatten(leaves), gradients), (tree.unflatten(mapped), [False] * len(gradients))

    return differentiate


def _in_vmap(loss: Callable, size: int, in_batched: Any, values: list[Any], rest: list[Any]) -> Any:
    """Differentiate the losses of the lanes of a user's `vmap`, each by its own values, and sum over the replicas."""
    own = [v if b else jnp.broadcast_to(v, (size, *v.shape)) for v, b in zip(values, in_batched[0], strict=True)]
    axes = [0 if batched else None for batched in in_batched[1]]

    def sum_of_lanes(values: list[Any], rest: list[Any]) -> Any:
        out = jax.vmap(loss, in_axes=(0, axes), axis_size=size)(values, rest)
        return out[0].sum(), out

    (_, out), gradients = _of_summed_losses(sum_of_lanes)(own, rest)
    return (out, gradients), jax.tree.map(lambda _: True, (out, gradients))


def warn_of_large_sums(name: str, trace: ClosedJaxpr, replicas: int) -> None:
    """Warn if a step sums arrays as large as gradients over virtual replicas.

    Under `vmap` a gradient with respect to shared weights is one array per replica, summed afterwards (see the module's
    idea). `tpu.value_and_grad` differentiates the sum instead.

    Args:
        name: name of the step.
        trace: its trace after `with_summed_products`: sums that are a part of a product cost nothing.
        replicas: number of replicas.
    """
    # In the trace the slow form is a `psum` over an axis of the array itself.
    summed: list[Any] = [v.aval for equation in sums_over_replicas(level_of(trace)) for v in equation.invars]
    floating = [array for array in summed if jnp.issubdtype(array.dtype, jnp.inexact)]
    size_bytes = sum(math.prod(array.shape) * array.dtype.itemsize for array in floating) // replicas
    if replicas > 1 and size_bytes >= _MIN_SUMMED_BYTES:
        warnings.warn(
            f"{name} adds {format_bytes(size_bytes)} of each of {replicas} replicas. If they are gradients, "
            "(loss, gradients) = tpu.value_and_grad(loss_fn, parameters)(...) makes one for all replicas, already "
            "summed, and is many times faster on virtual cores",
            stacklevel=users_stacklevel(),
        )
