"""Gradients inside a replica, already summed over all replicas.

Idea: `vmap(grad)` makes one weight gradient for each replica and adds them up afterwards: eight times the memory, and
22 times the time for a large Dense layer. The sum of the losses has the same gradient, and differentiating that makes
one. So `value_and_grad` carries its own rule for `vmap`; on a mesh it differentiates the local loss and all-reduces.

Rule: the gradient of a Keras variable is marked as summed. The mark is a pytree node around each gradient:
`jax.tree.map` keeps it, `optimizer.apply_gradients` takes it off and does not sum again, arithmetic on it raises and
names the way out. The gradients of a tree of arrays are plain arrays, as optax needs them; `all_reduce` of the replica
context refuses them, because it would sum them again.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.custom_batching import custom_vmap
from jax.extend.core import jaxpr_as_fun

from anytpu import _keras
from anytpu.errors import ReplicaError, SettingError
from anytpu.program.mapped import is_mapped
from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.assignments import write_back
from anytpu.strategy.recorded import record_gradients
from anytpu.strategy.replicas import Replica, ReplicaScope, current_replica, is_on_mesh


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
            "this gradient is already summed over the replicas, so arithmetic on it would be ambiguous: change all of "
            "them with jax.tree.map(fn, gradients), or ask for this replica's own gradients with "
            "tpu.value_and_grad(loss_fn, variables, local=True)"
        )

    # A property: JAX looks whether it is there before it looks at anything else, and so meets this error and not its
    # own.
    __jax_array__ = property(_refuse)
    __array__ = __float__ = __len__ = __iter__ = __getitem__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __neg__ = __abs__ = __matmul__ = __rmatmul__ = __pow__ = __lt__ = __gt__ = __le__ = __ge__ = _refuse


def value_and_grad(
    loss_fn: Callable[..., Any], variables: Any, *, has_aux: bool = False, local: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that computes a loss and its gradients with respect to Keras variables or a tree of arrays.

    Inside `strategy.run` the gradients are summed over all replicas (see the module's idea) unless `local` is set.
    With the loss as a share of the whole batch, `tpu.compute_average_loss(losses)`, they are those of the whole batch.

    Args:
        loss_fn: returns this replica's loss, a scalar; or `(loss, aux)` with `has_aux`. It may update other variables
            (BatchNorm statistics, metrics): the updates are kept. For a tree of arrays it takes the tree first.
        variables: what to differentiate by: a list of Keras variables, such as `model.trainable_variables`; or a tree
            of arrays, the same on every replica: a dictionary, the state of `nnx.split`, an Equinox module.
        has_aux: `loss_fn` returns `(loss, aux)`.
        local: return this replica's own gradients, for example to clip them one replica at a time;
            `optimizer.apply_gradients` sums those of Keras variables.

    Returns:
        `fn(*args, **kwargs) -> (loss, gradients)` or `((loss, aux), gradients)`. The gradients are a list, one for each
        Keras variable, or a tree like the one given, with None for each leaf that is not an array of floating-point
        numbers.

    Raises:
        SettingError: `variables` is neither a list of Keras variables nor a tree with an array of floating-point
            numbers.
        ReplicaError: (when it is called) the loss is not a scalar.

    Example:
        >>> weight = keras.Variable(3.0)
        >>> loss, (gradient,) = value_and_grad(lambda x: weight * weight * x, [weight])(2.0)
        >>> float(loss), float(gradient)
        (18.0, 12.0)
        >>> loss, gradients = value_and_grad(lambda params, x: params["w"] ** 2 * x, {"w": jnp.array(3.0)})(2.0)
        >>> float(loss), float(gradients["w"])
        (18.0, 12.0)
    """
    wanted = _wanted(variables)

    def call(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        loss_of, written = _pure(functools.partial(wanted.loss, loss_fn, args, kwargs), wanted.replaced, has_aux)
        replica = current_replica()
        if local or replica is None or replica.axis is None:
            (loss, (aux, updates)), gradients = jax.value_and_grad(loss_of, has_aux=True)(wanted.values())
            found = wanted.gradients(gradients)
        else:
            (loss, (aux, updates)), gradients = summed_value_and_grad(loss_of, wanted.values())
            found = wanted.summed(gradients, replica)
        for variable, update in zip(written, updates, strict=True):
            write_back(variable, update)
        return ((loss, aux) if has_aux else loss), found

    return call


def summed_value_and_grad(loss_of: Callable, values: list[Any]) -> tuple[Any, list[Any]]:
    """Return a loss of one replica and its gradients summed over the replicas, inside one of several.

    Args:
        loss_of: takes the list of arrays `values`, and returns the pair of the loss, a scalar, and a tree of other
            arrays.
        values: the arrays to differentiate by; the same on every replica.

    Returns:
        The pair that `loss_of` returned, and one gradient for each array.
    """
    replica = current_replica()
    if replica is not None and replica.shard is not None and replica.shard.is_recorded:
        return record_gradients(loss_of, values)
    return (_on_mesh if is_on_mesh() else _over_lanes)(loss_of, values)


@dataclasses.dataclass(frozen=True)
class _OfVariables:
    """Keras variables to differentiate by. The loss reads them where it stands."""

    variables: list[Any]

    def values(self) -> list[Any]:
        return [variable.value for variable in self.variables]

    def replaced(self, values: list[Any]) -> list[tuple[Any, Any]]:
        return list(zip(self.variables, values, strict=True))

    def loss(self, loss_fn: Callable, args: tuple, kwargs: dict, values: list[Any]) -> Any:
        del values  # The scope in which this runs gives them to the variables.
        return loss_fn(*args, **kwargs)

    def gradients(self, arrays: list[Any]) -> list[Any]:
        return arrays

    def summed(self, arrays: list[Any], replica: Replica) -> list[Any]:
        del replica
        return [SummedGradient(array) for array in arrays]


@dataclasses.dataclass(frozen=True)
class _OfTree:
    """A tree to differentiate by its arrays of floating-point numbers. The loss takes it as its first argument."""

    leaves: list[Any]
    tree: Any
    places: list[int]

    def values(self) -> list[Any]:
        return [self.leaves[place] for place in self.places]

    def replaced(self, values: list[Any]) -> list[tuple[Any, Any]]:
        del values  # No Keras variable has one of them.
        return []

    def loss(self, loss_fn: Callable, args: tuple, kwargs: dict, values: list[Any]) -> Any:
        leaves = list(self.leaves)
        for place, value in zip(self.places, values, strict=True):
            leaves[place] = value
        return loss_fn(self.tree.unflatten(leaves), *args, **kwargs)

    def gradients(self, arrays: list[Any]) -> Any:
        own = dict(zip(self.places, arrays, strict=True))
        return self.tree.unflatten([own.get(place) for place in range(len(self.leaves))])

    def summed(self, arrays: list[Any], replica: Replica) -> Any:
        replica.summed.extend(arrays)
        return self.gradients(arrays)


def _wanted(variables: Any) -> _OfVariables | _OfTree:
    listed = list(variables) if isinstance(variables, list | tuple | Iterator) else []
    if listed and all(isinstance(one, keras.Variable) for one in listed):
        return _OfVariables(listed)
    leaves, tree = jax.tree.flatten(variables)
    places = [
        place
        for place, leaf in enumerate(leaves)
        if isinstance(leaf, jax.Array | np.ndarray) and jnp.issubdtype(leaf.dtype, jnp.inexact)
    ]
    if not places or any(isinstance(leaf, keras.Variable) for leaf in leaves):
        raise SettingError(
            "variables must be a list of Keras variables, such as model.trainable_variables, or a tree with arrays of "
            f"floating-point numbers, such as the parameters of a JAX model, not {variables!r}"
        )
    return _OfTree(leaves, tree, places)


def _pure(loss_fn: Callable[[list[Any]], Any], replaced: Callable, has_aux: bool) -> tuple[Callable, list[Any]]:
    """Return the loss as a function of arrays, and the list that its trace fills with the variables it wrote.

    Args:
        loss_fn: takes the arrays.
        replaced: returns, for the arrays, the pairs (Keras variable, its value meanwhile).
        has_aux: it returns `(loss, aux)`.
    """
    written: list[Any] = []

    def loss_of(values: list[Any]) -> tuple[Any, tuple[Any, list[Any]]]:
        scope = ReplicaScope(replaced(values), _keras.stateless_scope())
        with scope:
            out = loss_fn(values)
        loss, aux = out if has_aux else (out, None)
        if jnp.shape(loss) != ():
            raise ReplicaError(
                f"loss_fn must return one number, and it returned an array of shape {jnp.shape(loss)}: take "
                "tpu.compute_average_loss(losses, global_batch_size=...) or keras.ops.mean(losses)"
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

    The loss is traced to a jaxpr first and everything that it captured is passed in: a `custom_vmap` function may not
    close over the tracers of the `vmap` around it.
    """
    closed, shape = jax.make_jaxpr(loss_of, return_shape=True)(values)
    into = jax.tree.structure(shape)

    def loss(values: list[Any], captured: list[Any]) -> Any:
        return into.unflatten(jaxpr_as_fun(closed.replace(consts=captured[1:]))(*values))

    # The index goes in with the rest: `vmap` asks the rule below only when something differs between the replicas, and
    # what it does not ask it for may still speak of the axis.
    return _of_summed_losses(loss)(values, [jax.lax.axis_index(REPLICA_AXIS), *closed.consts])


def _of_summed_losses(loss: Callable) -> Callable:
    """Return `(values, rest) -> ((loss, aux), gradients summed over the lanes)`; its rule for `vmap` does the work."""

    @custom_vmap
    def differentiate(values: list[Any], rest: list[Any]) -> Any:
        return jax.value_and_grad(loss, has_aux=True)(values, rest)

    @differentiate.def_vmap
    def over_lanes(axis_size: int, in_batched: Any, values: list[Any], rest: list[Any]) -> Any:
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
