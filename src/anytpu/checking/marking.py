"""Mark the values of a Keras training step by name, each layer's output and each gradient, and return them.

Idea: every layer is called through `Layer.__call__` and every gradient passes through `Optimizer.apply`, also in a
custom training step. Wrappers there mark the values with JAX's `checkpoint_name`, which survives differentiation and
batching, and record the layer that raised an error. When the step is traced, `tapped` collects the marked values and
returns them.

Rule: the wrappers are installed once and stay; outside of `marking` they do nothing. Taps do not change the results of
a step. A mark in the body of a loop or in a branch has many values or none, and is not returned.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import keras
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core

from anytpu import _keras
from anytpu.program.program import Tree

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


_MARK = "anytpu:"
_CALLS = frozenset(
    [
        *["checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call"],
        *["eval_jaxpr", "jit", "pjit", "remat2"],
    ]
)


def marked(value: jax.Array, name: str) -> jax.Array:
    """Return a value marked with a name, for `tapped`."""
    return checkpoint_name(value, _MARK + name)


def tapped(step: Callable[[Tree, Tree], tuple[Tree, Tree]]) -> Callable[[Tree, Tree], tuple[Tree, Tree]]:
    """Return a step whose outputs are the pair of the outputs of `step` and the dictionary of its marked values.

    Example:
        >>> step = tapped(lambda state, batch: (state, marked(batch + 1, "more") * 2))
        >>> state, (outputs, values) = step(0.0, jnp.ones(2))
        >>> outputs.tolist(), {name: value.tolist() for name, value in values.items()}
        ([4.0, 4.0], {'more': [2.0, 2.0]})
    """

    def tapped_step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        closed, form = jax.make_jaxpr(step, return_shape=True)(state, batch)
        values: dict[str, Any] = {}
        flat = _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves((state, batch)), values)
        new_state, outputs = jax.tree.unflatten(jax.tree.structure(form), flat)
        return new_state, (outputs, values)

    return tapped_step


def _evaluate(
    function: core.Jaxpr, constants: Sequence[Any], inputs: Sequence[Any], marks: dict[str, Any]
) -> list[Any]:
    """Evaluate a traced function, and store the first value of each mark in `marks`."""
    known: dict[Any, Any] = dict(zip([*function.constvars, *function.invars], [*constants, *inputs], strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for equation in function.eqns:
        operands, inner = [read(atom) for atom in equation.invars], _with_marks(equation)
        if inner is not None:
            results = _evaluate(inner.jaxpr, inner.consts, operands, marks)
        else:
            with equation.ctx.manager:
                results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
            results = results if equation.primitive.multiple_results else [results]
        known.update(zip(equation.outvars, results, strict=True))
        if (name := _mark_of(equation)) is not None:
            marks.setdefault(name, results[0])
    return [read(atom) for atom in function.outvars]


def _mark_of(equation: core.JaxprEqn) -> str | None:
    name = str(equation.params.get("name", "")) if equation.primitive.name == "name" else ""
    return name.removeprefix(_MARK) if name.startswith(_MARK) else None


def _with_marks(equation: core.JaxprEqn) -> core.ClosedJaxpr | None:
    """Return the function that an equation calls exactly once, if it contains marks; else None."""
    if equation.primitive.name not in _CALLS:
        return None
    functions = [param for param in equation.params.values() if isinstance(param, core.ClosedJaxpr | core.Jaxpr)]
    if len(functions) != 1:
        return None
    closed = functions[0] if isinstance(functions[0], core.ClosedJaxpr) else core.ClosedJaxpr(functions[0], ())
    return closed if _has_marks(closed.jaxpr) else None


def _has_marks(function: core.Jaxpr) -> bool:
    return any(_mark_of(equation) is not None or _with_marks(equation) is not None for equation in function.eqns)
