"""Gradients that are already summed over the replicas, and what a step makes of them.

Idea: `tpu.value_and_grad` sums the gradients, and `optimizer.apply_gradients` must not sum them again. So the gradient
of a Keras variable is marked by a pytree node around the array. Arithmetic and `jax.tree.map` keep the mark. A function
of JAX or Keras gets the array, and returns arrays without a mark.

Rule: a gradient without a mark is summed, as in TensorFlow. There is one exception: a step turned a marked gradient
into an array, or reads a variable in which one was added up. Then it does not sum a gradient that is equal on all
replicas.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import jax
import keras

from anytpu import _jax
from anytpu.errors import ReplicaError
from anytpu.strategy.replicas import HOLDS_SUM, Replica, current_replica

_ATTRIBUTES = frozenset({"shape", "dtype", "ndim", "size"})
_UNARY = ("neg", "pos", "abs")
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True, eq=False)
class SummedGradient:
    """A gradient that is already summed over the replicas, so `optimizer.apply_gradients` does not sum it again.

    It is used like an array. The result of arithmetic with numbers, variables and values that are equal on all replicas
    is marked, too.

    Attributes:
        array: the summed gradient.
    """

    array: Any

    # NumPy leaves the arithmetic to this class.
    __array_ufunc__ = None
    __hash__ = object.__hash__

    def tree_flatten_with_keys(self) -> tuple[Any, None]:
        """Return the array: a compiled function takes it without calling `__jax_array__` again."""
        return ((jax.tree_util.GetAttrKey("array"), self._without_mark()),), None

    def tree_flatten(self) -> tuple[Any, None]:
        """Return the array."""
        return (self._without_mark(),), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> SummedGradient:
        """Return the gradient of an array."""
        return cls(*children)

    def __jax_array__(self) -> Any:
        return self._without_mark()

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._without_mark().__array__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.array if name in _ATTRIBUTES else self._without_mark(), name)

    def __getitem__(self, index: Any) -> Any:
        return self._without_mark()[index]

    def __iter__(self) -> Any:
        return iter(self._without_mark())

    def __len__(self) -> int:
        return len(self.array)

    def __float__(self) -> float:
        return float(self.array)

    def __bool__(self) -> bool:
        return bool(self.array)

    def _without_mark(self) -> Any:
        """Return the array, and record that the step has it."""
        replica = current_replica()
        if replica is not None:
            replica.unmarked.append(self.array)
        return self.array

    def _changed(self, array: Any) -> SummedGradient:
        """Return a result of arithmetic on this gradient.

        Raises:
            ReplicaError: it differs between the replicas, so it is neither summed nor one replica's own.
        """
        if _jax.is_mapped(array) and not _jax.is_mapped(self.array):
            raise ReplicaError(
                "this gradient is already summed over the replicas, and the other operand differs between them, so the "
                "result would be neither: sum the other operand first, "
                'tpu.get_replica_context().all_reduce("SUM", value), or ask for this replica\'s own gradients with '
                "tpu.value_and_grad(loss_fn, variables, local=True)"
            )
        return SummedGradient(array)


def _install_operators() -> None:
    def unary(function: Callable) -> Callable:
        return lambda self: self._changed(function(self.array))

    def forward(function: Callable, marks: bool) -> Callable:
        def method(self: Any, other: Any) -> Any:
            result = function(self.array, _array_of(other))
            return self._changed(result) if marks else result

        return method

    def backward(function: Callable) -> Callable:
        return lambda self, other: self._changed(function(_array_of(other), self.array))

    for name in _UNARY:
        setattr(SummedGradient, f"__{name}__", unary(getattr(operator, name)))
    for name in (*_BINARY, *_COMPARISONS):
        setattr(SummedGradient, f"__{name}__", forward(getattr(operator, name), marks=name in _BINARY))
    for name in _BINARY:
        setattr(SummedGradient, f"__r{name}__", backward(getattr(operator, name)))


_install_operators()


def _array_of(value: Any) -> Any:
    if isinstance(value, SummedGradient):
        return value.array
    return value.value if isinstance(value, keras.Variable) else value


def reduced(gradient: Any, replica: Replica | None) -> Any:
    """Return a gradient that an optimizer applies, summed over the replicas exactly once.

    Args:
        gradient: a gradient with or without a mark; None stays None.
        replica: the replica that applies it; None outside of every replica.

    Raises:
        ReplicaError: it differs between the replicas, and may hold a gradient that is already summed.
    """
    if isinstance(gradient, SummedGradient):
        return gradient.array
    if gradient is None or replica is None or replica.axis is None:
        return gradient
    return replica.sum(gradient) if _is_own(gradient, replica) else gradient


def _is_own(gradient: Any, replica: Replica) -> bool:
    """Return whether a gradient without a mark is one of this replica alone."""
    if isinstance(gradient, keras.Variable):
        return not vars(gradient).get(HOLDS_SUM)
    if not replica.has_summed():
        return True
    # Only a trace under `vmap` knows what differs between the replicas; the later ones follow it.
    replica.losses["gradients"] = replica.losses.get("gradients", 0) + 1
    key = "gradients", replica.losses["gradients"], None if replica.shard is None else replica.shard.rows
    if not _jax.is_mapped(replica.index):
        return replica.verdicts.get(key, not replica.unmarked)
    differs = replica.verdicts[key] = _jax.is_mapped(gradient)
    if differs and replica.unmarked:
        raise ReplicaError(
            "an optimizer was given a gradient that differs between the replicas, in a step that passes gradients of "
            "tpu.value_and_grad, which are already summed, to functions of JAX or Keras: it may hold a summed one, "
            "which would be summed again. Add nothing of one replica to a summed gradient, or ask for this replica's "
            "own gradients with tpu.value_and_grad(loss_fn, variables, local=True)"
        )
    return differs


def check_not_summed(value: Any, replica: Replica) -> None:
    """Raise if a tree that is to be summed over the replicas has gradients that are summed already.

    Args:
        value: the tree.
        replica: the replica that sums it.
    """
    summed = {id(gradient) for gradient in replica.summed}
    leaves = jax.tree.leaves(value, is_leaf=lambda leaf: isinstance(leaf, SummedGradient))
    if any(isinstance(leaf, SummedGradient) or id(leaf) in summed for leaf in leaves):
        raise ReplicaError(
            "all_reduce was given gradients of tpu.value_and_grad, which are summed over the replicas already: leave "
            "it out, or ask for this replica's own gradients with tpu.value_and_grad(loss_fn, parameters, local=True)"
        )
