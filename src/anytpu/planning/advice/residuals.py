"""`residuals_of`: the residuals of a training step, the arrays that its forward pass keeps for its backward pass.

Idea: in a traced step the backward pass is the part that JAX transposed, and everything that depends on it. A value is
a residual if an earlier equation makes it, it grows with the batch and the backward pass reads it. A loop over layers
keeps one array for all its iterations, which its reverse loop reads.

Rule: bytes follow from the shapes, over all devices. The compiler fuses some of these values away, so only ratios of
these numbers are used.

Source of the idea of blocks: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, section 3. Keep the
input of each block, and the inside of one block at a time.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from anytpu.program.jaxprs import called_jaxpr

LONG = 128
"""Minimum of both lengths of a product of queries and keys; a smaller product takes little memory."""

MAX_BLOCKS = 64
"""Maximum number of blocks that the forward pass is cut into."""

_INLINED = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


@dataclasses.dataclass(frozen=True)
class Residuals:
    """The residuals of a training step, in bytes by their shapes.

    Attributes:
        total_bytes: bytes of all residuals.
        blocks: number of blocks for which rematerialisation keeps the fewest bytes.
        kept_bytes: bytes kept with that many blocks: the inputs of the blocks, and the inside of one.
        attention_bytes: the part of `total_bytes` that is softmax(QK) or derived from it.
        attention: the shape of the largest such array: "float32[64,16,1024,1024]", or "".
    """

    total_bytes: int = 0
    blocks: int = 0
    kept_bytes: int = 0
    attention_bytes: int = 0
    attention: str = ""


@dataclasses.dataclass(frozen=True)
class _Equation:
    """An equation of the step after inlining of calls.

    Attributes:
        inner: the equation in its jaxpr.
        inputs: indices of the values that it reads.
        outputs: indices of the values that it makes.
        is_transposed: whether JAX made it by transposition.
    """

    inner: JaxprEqn
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    is_transposed: bool


def residuals_of(jaxpr: ClosedJaxpr, states: int) -> Residuals:
    """Return the residuals of a training step.

    Args:
        jaxpr: the traced step: the leaves of the state come first, then those of the batch.
        states: number of leaves of the state.

    Example:
        >>> def step(w, x):
        ...     return jax.grad(lambda w: jnp.sin(x @ w).sum())(w), ()
        >>> traced = jax.make_jaxpr(step)(jnp.ones((4, 4)), jnp.ones((8, 4)))
        >>> residuals_of(traced, 1).total_bytes == 4 * 8 * 4  # of the cosine
        True
    """
    flat = _Flat()
    inputs = [flat.new() for _ in jaxpr.jaxpr.invars]
    flat.walk(jaxpr.jaxpr, inputs, is_transposed=False)
    grows = set(inputs[states:])
    forward, backward = list[_Equation](), set[int]()
    read_later = set[int]()
    for equation in flat.equations:
        if equation.is_transposed or not backward.isdisjoint(equation.inputs):
            backward.update(equation.outputs)
            read_later.update(equation.inputs)
        else:
            forward.append(equation)
            if not grows.isdisjoint(equation.inputs):
                grows.update(equation.outputs)
    return _sum_residuals(forward, flat.sizes, grows, read_later)


class _Flat:
    """The equations of a step in one list, with an index for each value."""

    def __init__(self) -> None:
        self.equations: list[_Equation] = []
        self.sizes: list[int] = []

    def new(self, aval: Any = None) -> int:
        self.sizes.append(_bytes(aval))
        return len(self.sizes) - 1

    def walk(self, jaxpr: Jaxpr, inputs: Sequence[int], is_transposed: bool) -> list[int]:
        """Add the equations of a jaxpr, and return its results."""
        known: dict[Any, int] = dict(zip(jaxpr.invars, inputs, strict=True))

        def number(variable: Any) -> int:
            if isinstance(variable, Literal):
                return self.new()
            if variable not in known:
                known[variable] = self.new()  # A constant.
            return known[variable]

        for equation in jaxpr.eqns:
            operands = [number(variable) for variable in equation.invars]
            transposed = is_transposed or "transpose(" in str(equation.source_info.name_stack)
            called = _inlined_jaxpr(equation)
            if called is not None:
                results = self.walk(called, operands, transposed)
            else:
                results = [self.new(variable.aval) for variable in equation.outvars]
                self.equations.append(_Equation(equation, tuple(operands), tuple(results), transposed))
            known.update(zip(equation.outvars, results, strict=True))
        return [number(variable) for variable in jaxpr.outvars]


def _inlined_jaxpr(equation: JaxprEqn) -> Jaxpr | None:
    return called_jaxpr(equation) if equation.primitive.name in _INLINED else None


def _sum_residuals(forward: list[_Equation], sizes: list[int], grows: set[int], read_later: set[int]) -> Residuals:
    """Return the sums over loops and over equations outside loops."""
    attention = collections.Counter[str]()
    looped = looped_kept = turns = 0
    outside = dict[int, int]()  # The bytes that each equation outside loops keeps, by its index.
    sizes_of_attention = _attention_sizes(equation.inner for equation in forward)
    for index, equation in enumerate(forward):
        kept = [(number, out.aval) for number, out in zip(equation.outputs, equation.inner.outvars, strict=True)]
        kept = [(number, aval) for number, aval in kept if number in read_later and number in grows]
        if equation.inner.primitive.name == "scan":
            stacked = [aval for number, aval in kept if number in equation.outputs[_carries(equation.inner) :]]
            inside = _attention_sizes(equation.inner.params["jaxpr"].jaxpr.eqns)
            attention.update(
                _by_shape((aval, _shape(aval)[1:]) for aval in stacked if _sizes(_shape(aval)[1:]) in inside)
            )
            length, size = equation.inner.params["length"], sum(map(_bytes, stacked))
            if size:
                looped, looped_kept, turns = (
                    looped + size,
                    looped_kept + _carry_bytes(equation) * length,
                    turns + length,
                )
                looped_kept += size // length
            kept = [(number, aval) for number, aval in kept if aval not in stacked]
        attention.update(
            _by_shape((aval, _shape(aval)) for _, aval in kept if _sizes(_shape(aval)) in sizes_of_attention)
        )
        outside[index] = sum(sizes[number] for number, _ in kept)
    blocks, kept_bytes = _best_blocks(outside, _crossing(forward, sizes, grows))
    total = looped + sum(outside.values())
    if not total:
        return Residuals()
    largest = max(attention, key=lambda shape: attention[shape], default="")
    return Residuals(total, turns + blocks, looped_kept + kept_bytes, sum(attention.values()), largest)


def _carry_bytes(scan: _Equation) -> int:
    return sum(_bytes(variable.aval) for variable in scan.inner.outvars[: _carries(scan.inner)])


def _carries(scan: JaxprEqn) -> int:
    """Return the number of carried results of a scan. The others are stacked, with one axis more than in the body.

    Up to jax 0.11 the parameter `num_carry` has this number.
    """
    body = scan.params["jaxpr"].jaxpr.outvars
    return sum(len(_shape(out.aval)) == len(_shape(inner.aval)) for out, inner in zip(scan.outvars, body, strict=True))


def _crossing(forward: list[_Equation], sizes: list[int], grows: set[int]) -> list[int]:
    """Return for each equation the bytes that the forward pass keeps across it, from before it to it or a later one."""
    made, last = dict[int, int](), dict[int, int]()
    for index, equation in enumerate(forward):
        made.update(dict.fromkeys(equation.outputs, index))
        last.update(dict.fromkeys(equation.inputs, index))
    change = [0] * (len(forward) + 2)
    for number, place in made.items():
        if number in grows and last.get(number, place) > place:
            change[place + 1] += sizes[number]
            change[last[number] + 1] -= sizes[number]
    crossing, now = [], 0
    for each in change:
        now += each
        crossing.append(now)
    return crossing


def _best_blocks(inside: dict[int, int], crossing: list[int]) -> tuple[int, int]:
    """Return the number of blocks that keeps the fewest bytes, and those bytes."""
    total = sum(inside.values())
    best = (1, total)
    for blocks in range(2, MAX_BLOCKS + 1):
        cuts, largest = _cut(inside, crossing, total / blocks)
        kept = sum(crossing[cut] for cut in cuts) + largest
        if kept < best[1]:
            best = (len(cuts) + 1, kept)
    return best


def _cut(inside: dict[int, int], crossing: list[int], most: float) -> tuple[list[int], int]:
    """Cut where the fewest bytes cross, into blocks of at most about `most` bytes; return the cuts, and the largest
    block."""
    cuts, largest, start, now = list[int](), 0, 0, 0
    best, before = -1, 0  # The best cut since the block was half full, and the bytes before it.
    for place, size in inside.items():
        if now >= most / 2 and place > start and (best < 0 or crossing[place] <= crossing[best]):
            best, before = place, now
        now += size
        if now > most and best >= 0:
            cuts.append(best)
            largest, start, now, best = max(largest, before), best, now - before, -1
    return cuts, max(largest, now)


def _attention_sizes(equations: Iterable[JaxprEqn]) -> set[tuple[int, ...]]:
    """Return the sizes of products of queries and keys: a batched product that is exponentiated."""
    products, exponents = set[tuple[int, ...]](), set[tuple[int, ...]]()
    for equation in _all(equations):
        shape = _shape(equation.outvars[0].aval) if equation.outvars else ()
        if equation.primitive.name == "exp" and min([size for size in shape if size > 1][-2:], default=0) >= LONG:
            exponents.add(_sizes(shape))
        elif equation.primitive.name == "dot_general" and equation.params["dimension_numbers"][1][0]:
            products.add(_sizes(shape))
    return {sizes for sizes in exponents & products if len(sizes) >= 3}


def _sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return sorted sizes of dimensions: a product may be transposed before it is exponentiated."""
    return tuple(sorted(size for size in shape if size > 1))


def _all(equations: Iterable[JaxprEqn]) -> Iterator[JaxprEqn]:
    for equation in equations:
        called = _inlined_jaxpr(equation)
        if called is None:
            yield equation
        else:
            yield from _all(called.eqns)


def _by_shape(kept: Iterable[tuple[Any, tuple[int, ...]]]) -> collections.Counter[str]:
    bytes_by_shape = collections.Counter[str]()
    for aval, shape in kept:
        bytes_by_shape[f"{aval.dtype}[{','.join(map(str, shape))}]"] += _bytes(aval)
    return bytes_by_shape


def _shape(aval: Any) -> tuple[int, ...]:
    return getattr(aval, "shape", ())


def _bytes(aval: Any) -> int:
    shape = getattr(aval, "shape", None)
    return math.prod(shape) * getattr(aval.dtype, "itemsize", 4) if shape is not None else 0
