"""Mark the values of a Keras training step by name: each layer's output, each gradient.

Idea: every layer is called through `Layer.__call__` and every gradient passes through `Optimizer.apply`, also in a
custom training step. Wrappers there mark the values for `taps`, and record the layer that raised an error.

Rule: the wrappers are installed once and stay; outside of `marking` they do nothing.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import keras

from anytpu import _keras
from anytpu.train.checking.taps import marked

Kind = Literal["output", "gradient"]
_ACTIVE: contextvars.ContextVar[Marking | None] = contextvars.ContextVar("marking", default=None)


class Marking:
    """The marks of one trace of a step.

    Args:
        model: name of the model, the prefix of its layers' paths.

    Attributes:
        failed: path of the innermost layer that raised an error, or None.
    """

    def __init__(self, model: str) -> None:
        self.failed: str | None = None
        self._start = f"{model}/"
        self._calls: collections.Counter[str] = collections.Counter()

    def name_of(self, layer: Any) -> str:
        """Return the path of a layer in the model, or its name: Keras knows no path of a layer without variables."""
        return (getattr(layer, "path", None) or layer.name).removeprefix(self._start)

    def mark_tree(self, tree: Any, kind: Kind, name: str) -> Any:
        """Mark the arrays of a tree. A mark contains the order of computation, the kind and the name."""
        self._calls[kind + name] += 1
        count = self._calls[kind + name]
        again = f" (call {count})" if count > 1 else ""
        leaves, form = jax.tree.flatten(tree)
        suffixes = [f"[{index}]" if len(leaves) > 1 else "" for index in range(len(leaves))]
        return form.unflatten(
            [self._mark(leaf, kind, f"{name}{suffix}{again}") for leaf, suffix in zip(leaves, suffixes, strict=True)]
        )

    def _mark(self, value: Any, kind: Kind, name: str) -> Any:
        if not isinstance(value, jax.Array):
            return value
        self._calls[""] += 1
        result = marked(value, f"{self._calls['']:06d}|{kind}|{name}")
        if (mask := _keras.mask_of(value)) is not None:
            _keras.set_mask(result, mask)
        return result


def read_mark(mark: str) -> tuple[Kind, str]:
    """Return the kind and the name of a mark. Marks sort in the order in which the values are computed."""
    _, kind, name = mark.split("|", 2)
    return ("gradient" if kind == "gradient" else "output"), name


@contextlib.contextmanager
def marking(model: str) -> Iterator[Marking]:
    """Return a context in which the values that Keras computes for the model of this name are marked."""
    _install()
    token = _ACTIVE.set(marks := Marking(model))
    try:
        yield marks
    finally:
        _ACTIVE.reset(token)


@functools.cache
def _install() -> None:
    _keras.wrap(keras.layers.Layer, "__call__", _marking_output, by="check")
    _keras.wrap(keras.optimizers.Optimizer, "apply", _marking_gradients, by="check")


def _marking_output(call: Callable) -> Callable:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        active = _ACTIVE.get()
        if active is None:
            return call(self, *args, **kwargs)
        try:
            outputs = call(self, *args, **kwargs)
        except Exception:
            active.failed = active.failed or active.name_of(self)
            raise
        return active.mark_tree(outputs, "output", active.name_of(self))

    return __call__


def _marking_gradients(apply: Callable) -> Callable:
    def wrapper(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        active = _ACTIVE.get()
        if active is not None:
            variables = _keras.optimized_variables(self) if trainable_variables is None else trainable_variables
            pairs = list(zip(grads, variables, strict=True))
            # Backpropagation computes the gradients of the last layers first.
            marked_gradients = {id(v): active.mark_tree(g, "gradient", v.path) for g, v in reversed(pairs)}
            grads = [marked_gradients[id(v)] for _, v in pairs]
        return apply(self, grads, trainable_variables)

    return wrapper
