"""`saved_of`: the arrays that a training step keeps from its forward pass for its backward pass.

Idea: in a traced step the backward pass is what JAX transposed, and what depends on it. A value that an earlier
equation makes, that grows with the batch and that the backward pass reads, is kept until then. A loop over layers keeps
one array for all its turns, which its reverse loop reads.

Rule: bytes are those of the shapes, of all devices together. The compiler fuses some of these values away, so that
ratios of these numbers are used, never the numbers themselves. Source of the idea of blocks: Chen et al., "Training
Deep Nets with Sublinear Memory Cost", 2016, section 3: keep the input of each block, and the inside of one at a time.
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
"""A product of queries and keys has two lengths of at least this; smaller ones are no burden."""

MOST_BLOCKS = 64
"""The most parts that a pass is cut into."""

_INLINED = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")


@dataclasses.dataclass(frozen=True)
class Saved:
    """What the forward pass keeps for the backward pass, by its shapes.

    Attributes:
        total_bytes: all of it.
        blocks: the number of blocks in which rematerialisation keeps least.
        kept_bytes: what would be kept then: the inputs of the blocks, and the inside of one.
        attention_bytes: the part of `total_bytes` that is softmax(QK) and what is derived from it.
        attention: the shape of the largest such array: "float32[64,16,1024,1024]", or "".
    """

    total_bytes: int = 0
    blocks: int = 0
    kept_bytes: int = 0
    attention_bytes: int = 0
    attention: str = ""


@dataclasses.dataclass(frozen=True)
class _Equation:
    """An equation of the whole step, calls replaced by what they call.

    Attributes:
        inner: the equation.
        inputs: the values that it reads, as numbers.
        outputs: the values that it makes.
        is_transposed: JAX made it by transposition.
    """

    inner: JaxprEqn
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    is_transposed: bool


def saved_of(jaxpr: ClosedJaxpr, states: int) -> Saved:
    """Return what a training step keeps for its backward pass.

    Args:
        jaxpr: the step as it was traced: the leaves of the state go in first, then those of the batch.
        states: the number of leaves of the state.

    Example:
        >>> def step(w, x):
        ...     return jax.grad(lambda w: jnp.sin(x @ w).sum())(w), ()
        >>> traced = jax.make_jaxpr(step)(jnp.ones((4, 4)), jnp.ones((8, 4)))
        >>> saved_of(traced, 1).total_bytes == 4 * 8 * 4  # of the cosine
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
    return _summed(forward, flat.sizes, grows, read_later)


class _Flat:
    """The equations of a step in one list, its values numbered."""

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
            given = [number(variable) for variable in equation.invars]
            transposed = is_transposed or "transpose(" in str(equation.source_info.name_stack)
            called = _called(equation)
            if called is not None:
                results = self.walk(called, given, transposed)
            else:
                results = [self.new(variable.aval) for variable in equation.outvars]
                self.equations.append(_Equation(equation, tuple(given), tuple(results), transposed))
            known.update(zip(equation.outvars, results, strict=True))
        return [number(variable) for variable in jaxpr.outvars]


def _called(equation: JaxprEqn) -> Jaxpr | None:
    return called_jaxpr(equation) if equation.primitive.name in _INLINED else None


def _summed(forward: list[_Equation], sizes: list[int], grows: set[int], read_later: set[int]) -> Saved:
    """Return the sums over loops and over what stands in no loop."""
    attention = collections.Counter[str]()
    looped = looped_kept = turns = 0
    outside = dict[int, int]()  # The bytes that each equation outside loops keeps, by its place.
    sizes_of_attention = _attention_sizes(one.inner for one in forward)
    for place, one in enumerate(forward):
        kept = [(number, out.aval) for number, out in zip(one.outputs, one.inner.outvars, strict=True)]
        kept = [(number, aval) for number, aval in kept if number in read_later and number in grows]
        if one.inner.primitive.name == "scan":
            stacked = [aval for number, aval in kept if number in one.outputs[_carries(one.inner) :]]
            inside = _attention_sizes(one.inner.params["jaxpr"].jaxpr.eqns)
            attention.update(
                _by_shape((aval, _shape(aval)[1:]) for aval in stacked if _sizes(_shape(aval)[1:]) in inside)
            )
            length, size = one.inner.params["length"], sum(map(_bytes, stacked))
            if size:
                looped, looped_kept, turns = looped + size, looped_kept + _carry_bytes(one) * length, turns + length
                looped_kept += size // length
            kept = [(number, aval) for number, aval in kept if aval not in stacked]
        attention.update(
            _by_shape((aval, _shape(aval)) for _, aval in kept if _sizes(_shape(aval)) in sizes_of_attention)
        )
        outside[place] = sum(sizes[number] for number, _ in kept)
    blocks, kept_bytes = _best_blocks(outside, _crossing(forward, sizes, grows))
    total = looped + sum(outside.values())
    if not total:
        return Saved()
    largest = max(attention, key=lambda shape: attention[shape], default="")
    return Saved(total, turns + blocks, looped_kept + kept_bytes, sum(attention.values()), largest)


def _carry_bytes(scan: _Equation) -> int:
    return sum(_bytes(variable.aval) for variable in scan.inner.outvars[: _carries(scan.inner)])


def _carries(scan: JaxprEqn) -> int:
    """Return how many results of a scan are carried; the others are stacked, and have an axis more than in the body.

    Up to jax 0.11 the parameter `num_carry` said so.
    """
    body = scan.params["jaxpr"].jaxpr.outvars
    return sum(len(_shape(out.aval)) == len(_shape(inner.aval)) for out, inner in zip(scan.outvars, body, strict=True))


def _crossing(forward: list[_Equation], sizes: list[int], grows: set[int]) -> list[int]:
    """Return the bytes that cross from before each equation to it or behind it, within the forward pass."""
    made, last = dict[int, int](), dict[int, int]()
    for place, one in enumerate(forward):
        made.update(dict.fromkeys(one.outputs, place))
        last.update(dict.fromkeys(one.inputs, place))
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
    """Return into how many blocks to cut so that least is kept, and how much that is."""
    total = sum(inside.values())
    best = (1, total)
    for blocks in range(2, MOST_BLOCKS + 1):
        cuts, largest = _cut(inside, crossing, total / blocks)
        kept = sum(crossing[cut] for cut in cuts) + largest
        if kept < best[1]:
            best = (len(cuts) + 1, kept)
    return best


def _cut(inside: dict[int, int], crossing: list[int], most: float) -> tuple[list[int], int]:
    """Cut where least crosses, so that no block keeps much more than `most`: the cuts, and the largest block."""
    cuts, largest, start, now = list[int](), 0, 0, 0
    best, before = -1, 0  # The best cut since half of a block was full, and the bytes before it.
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
    for one in _all(equations):
        shape = _shape(one.outvars[0].aval) if one.outvars else ()
        if one.primitive.name == "exp" and min([size for size in shape if size > 1][-2:], default=0) >= LONG:
            exponents.add(_sizes(shape))
        elif one.primitive.name == "dot_general" and one.params["dimension_numbers"][1][0]:
            products.add(_sizes(shape))
    return {sizes for sizes in exponents & products if len(sizes) >= 3}


def _sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of dimensions, whatever their order: a product may be transposed before it is exponentiated."""
    return tuple(sorted(size for size in shape if size > 1))


def _all(equations: Iterable[JaxprEqn]) -> Iterator[JaxprEqn]:
    for one in equations:
        called = _called(one)
        if called is None:
            yield one
        else:
            yield from _all(called.eqns)


def _by_shape(kept: Iterable[tuple[Any, tuple[int, ...]]]) -> collections.Counter[str]:
    found = collections.Counter[str]()
    for aval, shape in kept:
        found[f"{aval.dtype}[{','.join(map(str, shape))}]"] += _bytes(aval)
    return found


def _shape(aval: Any) -> tuple[int, ...]:
    return getattr(aval, "shape", ())


def _bytes(aval: Any) -> int:
    shape = getattr(aval, "shape", None)
    return math.prod(shape) * getattr(aval.dtype, "itemsize", 4) if shape is not None else 0
