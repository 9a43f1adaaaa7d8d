"""`trace_digest`: the identity of a traced step, without lowering it.

Idea: a trace has each operation, its parameters and its operands. Their text, with variables numbered in order, is the
same in each process that traces the same step.

Rule: an array counts with its contents. A trace has no digest if the text of a parameter does not identify it, as for a
closure.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from anytpu.program.jaxprs import level_of

_RULES = ("custom_jvp_call", "custom_vjp_call")
"""Operations with rules for derivatives. A traced step is not differentiated again, so functions among their parameters
do not count."""


class _UnknownError(Exception):
    """A parameter has no text that identifies it."""


def trace_digest(trace: ClosedJaxpr) -> str | None:
    """Return the digest of a trace, without its source lines; None if a parameter cannot be identified.

    Example:
        >>> first, again = (jax.make_jaxpr(lambda x: x * 2)(1.0) for _ in range(2))
        >>> trace_digest(first) == trace_digest(again), trace_digest(first) == trace_digest(jax.make_jaxpr(abs)(1.0))
        (True, False)
    """
    try:
        return _Texts().of(trace)
    except _UnknownError:
        return None


class _Texts:
    """The texts of one trace; a function that is called twice is read once."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def of(self, value: Any) -> str:
        """Return the text of a parameter."""
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | np.dtype):
            return f"{type(value).__name__} {value!r}"
        if isinstance(value, enum.Enum):
            return str(value)
        if isinstance(value, ClosedJaxpr | Jaxpr):
            if id(value) not in self._known:
                self._known[id(value)] = self._digest(value)
            return self._known[id(value)]
        if isinstance(value, tuple | list):
            return f"{type(value).__name__}({', '.join(map(self.of, value))})"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{self.of(name)}: {self.of(item)}' for name, item in value.items())}}}"
        if isinstance(value, np.ndarray | jax.Array):
            return _array(value)
        if callable(value) and getattr(value, "__closure__", None) is None and hasattr(value, "__qualname__"):
            return f"{value.__module__}.{value.__qualname__}"
        return _described(value)

    def _digest(self, closed: ClosedJaxpr | Jaxpr) -> str:
        jaxpr, numbers = level_of(closed), dict[Any, int]()
        digest = hashlib.sha256()

        def results(variables: Any) -> str:
            for variable in variables:
                numbers[variable] = len(numbers)
            return ", ".join(_described(variable.aval) for variable in variables)

        def operands(atoms: Any) -> str:
            texts = (
                f"{self.of(atom.val)} {_described(atom.aval)}" if isinstance(atom, Literal) else f"v{numbers[atom]}"
                for atom in atoms
            )
            return ", ".join(texts)

        # 1. Arguments and constants, with the number of constants: it separates them from the arguments.
        digest.update(f"{results(jaxpr.constvars)}; {results(jaxpr.invars)}; {len(jaxpr.constvars)}\n".encode())
        for constant in closed.consts if isinstance(closed, ClosedJaxpr) else ():
            digest.update(f"{self.of(constant)}\n".encode())
        # 2. Each equation. Operands come first, because its results get the next numbers.
        for equation in jaxpr.eqns:
            reads = operands(equation.invars)
            digest.update(f"{self._operation(equation)} ({reads}) -> {results(equation.outvars)}\n".encode())
        # 3. The results.
        digest.update(operands(jaxpr.outvars).encode())
        return digest.hexdigest()

    def _operation(self, equation: JaxprEqn) -> str:
        name, params = equation.primitive.name, equation.params
        if name in _RULES:
            kept = [each for each, value in params.items() if isinstance(value, ClosedJaxpr | Jaxpr)]
            params = {each: params[each] for each in kept}
        # The context has `compute_on`, metadata for XLA, and the mesh.
        return f"{name} {self.of(params)} {_described(equation.ctx)}"


def _array(array: Any) -> str:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        return f"{array.dtype} {_array(jax.random.key_data(array))}"
    content = np.asarray(array)
    return f"{content.dtype}{content.shape} {hashlib.sha256(content.tobytes()).hexdigest()}"


def _described(value: Any) -> str:
    """Return the text of a record of JAX: a type, a sharding, a mesh."""
    text = repr(value)
    if not type(value).__module__.startswith("jax") or " at 0x" in text:
        raise _UnknownError(text)
    return text
