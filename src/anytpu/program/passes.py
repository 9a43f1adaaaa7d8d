"""`passes_of`: the forward and the backward pass of a traced training step, and its residuals.

Idea: in a traced step the backward pass is the part that JAX transposed, and everything that depends on it. A value is
a residual if the forward pass makes it, it grows with the batch and the backward pass reads it.

Source of `best_blocks`: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, section 3. Keep the input
of each block, and the inside of one block at a time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from anytpu.program.jaxprs import aval_of, called_jaxpr

MAX_BLOCKS = 64
"""Maximum number of blocks that the forward pass is cut into."""

_INLINED = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


def inlined_jaxpr(equation: JaxprEqn) -> Jaxpr | None:
    """Return the jaxpr of the function whose call `inlined` replaces by its equations; None for another equation.

    A function that captured arrays stays a call: its constants have no place in the jaxpr of its caller.
    """
    called = called_jaxpr(equation) if equation.primitive.name in _INLINED else None
    return called if called is not None and not called.constvars else None


def inlined(jaxpr: Jaxpr) -> Jaxpr:
    """Return a jaxpr with the equations of the functions that it calls; loops and branches are unchanged.

    An equation keeps its layer: the names of its callers come before its own.

    Example:
        >>> traced = jax.make_jaxpr(lambda x: jax.jit(jnp.sin)(x) + 1)(1.0)
        >>> [equation.primitive.name for equation in inlined(traced.jaxpr).eqns]
        ['sin', 'add']
    """
    inlining = _Inlining()
    known: dict[Any, Any] = {}
    inlining.walk(jaxpr, known, None)
    return jaxpr.replace(eqns=inlining.equations, outvars=[_read(known, atom) for atom in jaxpr.outvars])


class _Inlining:
    def __init__(self) -> None:
        self.equations: list[JaxprEqn] = []

    def walk(self, jaxpr: Jaxpr, known: dict[Any, Any], caller: JaxprEqn | None) -> None:
        """Add the equations of a jaxpr; `known` has the value of each of its variables that is named otherwise."""
        for equation in jaxpr.eqns:
            operands = [_read(known, atom) for atom in equation.invars]
            equation = equation.replace(invars=operands, source_info=_source(equation, caller))
            if (called := inlined_jaxpr(equation)) is not None:
                inside = dict(zip(called.invars, operands, strict=True))
                self.walk(called, inside, equation)
                results = [_read(inside, atom) for atom in called.outvars]
                known.update(zip(equation.outvars, results, strict=True))
                continue
            if caller is not None:
                # A function that is called twice makes two values.
                results = [Var(aval_of(variable)) for variable in equation.outvars]
                known.update(zip(equation.outvars, results, strict=True))
                equation = equation.replace(outvars=results)
            self.equations.append(equation)


def _read(known: dict[Any, Any], atom: Any) -> Any:
    return atom if isinstance(atom, Literal) else known.get(atom, atom)


def _source(equation: JaxprEqn, caller: JaxprEqn | None) -> Any:
    if caller is None:
        return equation.source_info
    stack = caller.source_info.name_stack + equation.source_info.name_stack
    return equation.source_info.replace(name_stack=stack)


@dataclasses.dataclass(frozen=True)
class StepPasses:
    """The passes of a training step.

    Attributes:
        forward: equations of the forward pass, and of all else that does not depend on a gradient.
        backward: equations of the backward pass, and of all that depends on it, such as the update.
        growing: values that depend on the batch.
        read_later: values that the backward pass reads.
    """

    forward: Sequence[JaxprEqn]
    backward: Sequence[JaxprEqn]
    growing: set[Any]
    read_later: set[Any]

    def kept(self, equation: JaxprEqn) -> list[Any]:
        """Return the results of a forward equation that are residuals."""
        return [out for out in equation.outvars if out in self.read_later and out in self.growing]

    def crossing(self) -> list[int]:
        """Return for each forward equation the bytes that the forward pass keeps across it, from before it to it or a
        later one."""
        made, last = dict[Any, int](), dict[Any, int]()
        for index, equation in enumerate(self.forward):
            made.update(dict.fromkeys(equation.outvars, index))
            last.update({atom: index for atom in equation.invars if not isinstance(atom, Literal)})
        # A value crosses from the equation after its own to its last reader, so only the differences are stored.
        change = [0] * (len(self.forward) + 2)
        for variable, index in made.items():
            if variable in self.growing and last.get(variable, index) > index:
                change[index + 1] += bytes_of(variable)
                change[last[variable] + 1] -= bytes_of(variable)
        crossing, now = [], 0
        for each in change:
            now += each
            crossing.append(now)
        return crossing


def passes_of(jaxpr: Jaxpr, states: int) -> StepPasses:
    """Return the passes of a training step.

    Args:
        jaxpr: the step, inlined: the leaves of the state come first, then those of the batch.
        states: number of leaves of the state.
    """
    growing = set[Any](jaxpr.invars[states:])
    forward, backward = list[JaxprEqn](), list[JaxprEqn]()
    # All that depends on a gradient counts as backward, so the update of the weights does too.
    made_backward, read_later = set[Any](), set[Any]()
    for equation in jaxpr.eqns:
        operands = [atom for atom in equation.invars if not isinstance(atom, Literal)]
        if "transpose(" in str(equation.source_info.name_stack) or not made_backward.isdisjoint(operands):
            backward.append(equation)
            made_backward.update(equation.outvars)
            read_later.update(operands)
        else:
            forward.append(equation)
        if not growing.isdisjoint(operands):
            growing.update(equation.outvars)
    return StepPasses(forward, backward, growing, read_later)


def best_blocks(inside: dict[int, int], crossing: Sequence[int]) -> tuple[list[int], int]:
    """Return the cuts of the forward pass that keep the fewest bytes, and those bytes.

    Args:
        inside: bytes that each forward equation keeps for the backward pass, by its index.
        crossing: bytes that are kept across each forward equation, as `StepPasses.crossing` returns them.
    """
    total = sum(inside.values())
    best: tuple[list[int], int] = ([], total)
    for blocks in range(2, MAX_BLOCKS + 1):
        cuts, largest = _cut(inside, crossing, total / blocks)
        kept = sum(crossing[cut] for cut in cuts) + largest
        if kept < best[1]:
            best = (cuts, kept)
    return best


def _cut(inside: dict[int, int], crossing: Sequence[int], most: float) -> tuple[list[int], int]:
    """Cut where the fewest bytes cross, into blocks of at most about `most` bytes; return the cuts, and the largest
    block."""
    cuts, largest, start, now = list[int](), 0, 0, 0
    best, before = -1, 0  # The best cut since the block was half full, and the bytes before it.
    for index, size in inside.items():
        if now >= most / 2 and index > start and (best < 0 or crossing[index] <= crossing[best]):
            best, before = index, now
        now += size
        if now > most and best >= 0:
            cuts.append(best)
            largest, start, now, best = max(largest, before), best, now - before, -1
    return cuts, max(largest, now)


def bytes_of(variable: Any) -> int:
    """Return the bytes of a value by its shape; 0 for one without a shape."""
    aval = aval_of(variable)
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 4) if hasattr(aval, "shape") else 0
