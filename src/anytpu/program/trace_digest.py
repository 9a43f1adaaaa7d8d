"""The identities of a step, without lowering it: `trace_digest` is exact, `program_digest` survives new versions.

Idea: a trace has each operation, its parameters and its operands. Their text, with variables numbered in order, is the
same in each process that traces the same step. A stored result needs this exact identity. A checkpoint outlives
versions of JAX that order the same operations in another way, so it counts the operations.

Rule: an array of a trace counts with its contents. A trace has no digest if the text of a parameter does not identify
it, as for a closure. Checkpoints hold program digests, so their values must not change.
"""

from __future__ import annotations

import collections
import enum
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from anytpu.program.jaxprs import inner_jaxprs, level_of
from anytpu.program.lowering import TRACING, one_device_step
from anytpu.program.placed import inside, placed_specs
from anytpu.program.program import Program
from anytpu.program.remembered import Remembered

_RULES = ("custom_jvp_call", "custom_vjp_call")
"""Operations with rules for derivatives. A traced step is not differentiated again, so functions among their parameters
do not count."""

_DIGESTS: Remembered[str] = Remembered()


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


def program_digest(program: Program) -> str:
    """Return the digest of a program: the shapes and types of its state and batch, its mode, its operations.

    It is the same in every process, and does not depend on names, the order of operations or source lines. It costs one
    more tracing of the step, once for each Program.

    Raises:
        ProgramError: the step cannot be traced.

    Example:
        >>> program_digest(program) == program_digest(dataclasses.replace(program, name="another name"))
        True
    """
    with TRACING:
        return _DIGESTS.get(program) or _DIGESTS.keep(program, _program_digest(program))


def _program_digest(program: Program) -> str:
    leaves = [
        *((leaf.shape, str(leaf.dtype), "state") for leaf in jax.tree.leaves(program.state)),
        *((leaf.shape, str(leaf.dtype), f"batch {layout.axis}") for leaf, layout in program.leaves()),
    ]
    step = one_device_step(program)
    with inside(program.placement):
        # A fresh function object: JAX's cache would return the jaxpr that a backend traced under its own switches.
        traced = jax.make_jaxpr(lambda state, batch: step(state, batch))(*placed_specs(program))
    counts = sorted(collections.Counter(_operations(traced)).items())
    text = json.dumps([program.mode, program.replicas, leaves, counts])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _operations(jaxpr: ClosedJaxpr | Jaxpr) -> Iterator[str]:
    """Yield each operation with the types of its results, inner ones included: "dot_general bfloat16"."""
    for equation in level_of(jaxpr).eqns:
        types = (str(getattr(variable.aval, "dtype", "")) for variable in equation.outvars)
        yield " ".join([equation.primitive.name, *types])
        for inner in inner_jaxprs(equation):
            yield from _operations(inner)


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
