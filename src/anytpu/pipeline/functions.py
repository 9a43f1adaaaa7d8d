"""A user's functions as a data set calls them: with tuples unpacked, and compiled where they compute with JAX.

Idea: a function with several parameters takes the parts of a tuple, as in tf.data. A function of whole batches that
returns JAX arrays is compiled for the host's CPU at its first batch. So it runs once a batch, as one program.

Rule: a compiled function gives the results of the function itself, so it must be a pure function of the batch's
numbers. That is checked for each shape: two traces are equal, no Keras variable is used, and the first batch has the
same result both ways.
"""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras
import numpy as np

from anytpu.errors import DataError, SettingTypeError

Tree = Any

_MAX_SHAPES = 16
"""Maximum number of batch shapes that a function is compiled for; batches of more shapes are computed uncompiled."""
_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class ElementFunction:
    """A user's function of an element.

    Attributes:
        step: name of the step that calls it, such as "map".
        function: the function.
        returns_element: whether its result is an element, and not a decision or a data set.
    """

    step: str
    function: Callable[..., Any]
    returns_element: bool = True

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SettingTypeError(f"{self.step} takes a function of an element, not {self.function!r}")

    @functools.cached_property
    def parameters(self) -> int:
        """Number of parameters that must be passed; 1 if it is not known."""
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError):
            return 1
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return sum(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)

    def __call__(self, element: Tree, *others: Any) -> Any:
        """Call the function; the parts of a tuple are separate arguments if it has that many parameters.

        Raises:
            DataError: it returns None: grain silently drops elements that are None.
        """
        is_spread = isinstance(element, tuple) and self.parameters > 1 + len(others)
        try:
            result = self.function(*element, *others) if is_spread else self.function(element, *others)
        except (TypeError, AttributeError, IndexError) as error:
            if isinstance(element, tuple) and not is_spread:
                error.add_note(
                    f"{self.step} passed a tuple of {len(element)} parts as one argument: for a part each, give the "
                    "function one parameter for each part, such as lambda x, y: ..."
                )
            raise
        if result is None and self.returns_element:
            name = getattr(self.function, "__name__", repr(self.function))
            raise DataError(
                f"the function {name!r} of {self.step} returned None for an element: return the new element; to drop "
                "elements, use filter"
            )
        return result


class BatchFunction:
    """A user's function of batches, compiled for the host's CPU if it computes with JAX or `keras.ops`.

    Args:
        function: the function.
    """

    def __init__(self, function: Callable[[Tree], Tree]) -> None:
        self._function = function
        self._deciding = threading.Lock()
        self._programs: dict[Any, _HostProgram | None] = {}
        self._uses_jax: bool | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return BatchFunction, (self._function,)

    def __call__(self, batch: Tree) -> Tree:
        """Return the function's result; the results of JAX are NumPy arrays."""
        if self._uses_jax is False:
            return self._function(batch)
        key = _shapes_of(batch)
        if key not in self._programs and len(self._programs) < _MAX_SHAPES:
            # One thread at a time decides. Another one may have decided this while the thread waited.
            with self._deciding:
                if key not in self._programs:
                    return self._decide(key, batch)
        program = self._programs.get(key)
        if program is not None:
            return program(batch)
        with _on_host():
            return jax.tree.map(_to_numpy, self._function(batch))

    def _decide(self, key: Any, batch: Tree) -> Tree:
        """Compute a batch of new shapes, and compile the function for them if that gives the same."""
        copy = jax.tree.map(lambda leaf: leaf, batch)  # the function may change the containers
        with _on_host():
            result = self._function(batch)
        self._uses_jax = self._uses_jax or any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(result))
        result = jax.tree.map(_to_numpy, result)
        program = None
        if self._uses_jax and not _keeps_values(self._function):
            # A function that cannot be traced, such as one with a branch on a value, stays uncompiled.
            with contextlib.suppress(Exception), _on_host():
                traced = _HostProgram(self._function, copy)
                program = traced if traced.is_pure and _are_same(traced(copy), result) else None
        self._programs[key] = program
        return result


def _keeps_values(function: Any) -> bool:
    """Return whether a function assigns to names or attributes outside of it, where a trace would leave its tracers."""
    if isinstance(function, ElementFunction):
        function = function.function
    if isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    own = {*code.co_varnames, *code.co_cellvars}
    kept = {"STORE_GLOBAL", "STORE_ATTR"}
    return any(
        step.opname in kept or (step.opname == "STORE_DEREF" and step.argval not in own)
        for step in dis.get_instructions(code)
    )


class _HostProgram:
    """A function compiled for batches of certain shapes.

    Args:
        function: the function.
        batch: a batch of these shapes.
    """

    def __init__(self, function: Callable[[Tree], Tree], batch: Tree) -> None:
        self._function = function
        leaves, self._tree = jax.tree.flatten(batch)
        self._numeric = [index for index, leaf in enumerate(leaves) if _is_numeric(leaf)]
        # Another column can be returned unchanged, and not read: it is not a part of the program.
        self._others = [None if index in self._numeric else object() for index in range(len(leaves))]
        self._returned: list[int | None] = []
        self._result_tree: Any = None
        arguments = [leaves[index] for index in self._numeric]
        # Traced twice: if the traces differ, the function depends on more than its arguments.
        with _NoVariables() as scope:
            first, second = (jax.make_jaxpr(self._compute)(arguments) for _ in range(2))
        self.is_pure = str(first) == str(second) and _are_same(first.consts, second.consts) and not scope.has_uses
        self._jitted = jax.jit(self._compute)

    def __call__(self, batch: Tree) -> Tree:
        leaves = jax.tree.leaves(batch)
        with _on_host():
            computed = iter(self._jitted([leaves[index] for index in self._numeric]))
        result = [np.asarray(next(computed)) if index is None else leaves[index] for index in self._returned]
        return self._result_tree.unflatten(result)

    def _compute(self, arguments: list[Any]) -> list[Any]:
        """Call the function; return the leaves of its result that are not unchanged columns of the batch.

        JAX calls it while it traces. It also records for `__call__` the structure of the result, and which of its
        leaves are unchanged columns.
        """
        inputs = list(self._others)
        for index, argument in zip(self._numeric, arguments, strict=True):
            inputs[index] = argument
        results, self._result_tree = jax.tree.flatten(self._function(self._tree.unflatten(inputs)))
        self._returned = [next((i for i, leaf in enumerate(inputs) if leaf is result), None) for result in results]
        return [result for result, index in zip(results, self._returned, strict=True) if index is None]


class _NoVariables(keras.StatelessScope):
    """A scope that notices uses of Keras variables: the values in a compiled function would not follow theirs."""

    def __init__(self) -> None:
        super().__init__(initialize_variables=False)
        self.has_uses = False

    def get_current_value(self, variable: Any) -> Any:
        self.has_uses = True
        return super().get_current_value(variable)

    def add_update(self, update: tuple[Any, Any]) -> None:
        self.has_uses = True
        super().add_update(update)


@contextlib.contextmanager
def _on_host() -> Iterator[None]:
    """Let JAX compute on the CPU, where there is one for JAX."""
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX was told to use only another platform
        yield
        return
    with jax.default_device(cpu):
        yield


def _shapes_of(batch: Tree) -> Any:
    leaves, tree = jax.tree.flatten(batch)
    return tree, tuple((np.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in leaves)


def _is_numeric(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and leaf.dtype.kind not in "OUSMm"


def _to_numpy(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _are_same(result: Tree, other: Tree) -> bool:
    """Return whether two results have the same columns, types and shapes, and values equal to float32's accuracy."""
    leaves, tree = jax.tree.flatten(result)
    others, other_tree = jax.tree.flatten(other)
    if tree != other_tree:
        return False
    for leaf, expected in zip(leaves, others, strict=True):
        if leaf is expected:
            continue
        if not _is_numeric(leaf) or not _is_numeric(expected) or leaf.dtype != expected.dtype:
            return False
        left, right = (np.asarray(value, np.float64) for value in (leaf, expected))
        if left.shape != right.shape or not np.allclose(left, right, _TOLERANCE, _TOLERANCE, equal_nan=True):
            return False
    return True
