"""`residuals_of`: the residuals of a training step, the arrays that its forward pass keeps for its backward pass.

Idea: `passes_of` finds them. A loop over layers keeps one array for all its iterations, which its reverse loop reads.

Rule: bytes follow from the shapes, over all devices. The compiler fuses some of these values away, so only ratios of
these numbers are used.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, JaxprEqn

from anytpu.program.jaxprs import scan_arguments, shape_of
from anytpu.program.passes import best_blocks, bytes_of, inlined, inlined_jaxpr, passes_of

LONG = 128
"""Minimum of both lengths of a product of queries and keys; a smaller product takes little memory."""


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
    passes = passes_of(inlined(jaxpr.jaxpr), states)
    attention = collections.Counter[str]()
    looped = looped_kept = turns = 0
    outside = dict[int, int]()  # The bytes that each equation outside loops keeps, by its index.
    sizes_of_attention = _attention_sizes(passes.forward)
    # 1. The bytes that each equation keeps, and which of them are attention's.
    for index, equation in enumerate(passes.forward):
        kept = passes.kept(equation)
        # A loop over layers is rematerialised by iteration: its carries are kept, and the inside of one iteration.
        if equation.primitive.name == "scan":
            carried = scan_arguments(equation)[1]
            stacked = [variable for variable in kept if variable in equation.outvars[carried:]]
            inside = _attention_sizes(equation.params["jaxpr"].jaxpr.eqns)
            attention.update(
                _by_shape((each, shape_of(each)[1:]) for each in stacked if _sizes(shape_of(each)[1:]) in inside)
            )
            length, size = equation.params["length"], sum(map(bytes_of, stacked))
            if size:
                looped, turns = looped + size, turns + length
                looped_kept += sum(map(bytes_of, equation.outvars[:carried])) * length + size // length
            kept = [variable for variable in kept if variable not in stacked]
        attention.update(
            _by_shape((each, shape_of(each)) for each in kept if _sizes(shape_of(each)) in sizes_of_attention)
        )
        outside[index] = sum(map(bytes_of, kept))
    # 2. Outside of loops, the cuts into blocks that keep the fewest bytes.
    cuts, kept_bytes = best_blocks(outside, passes.crossing())
    total = looped + sum(outside.values())
    if not total:
        return Residuals()
    largest = max(attention, key=lambda shape: attention[shape], default="")
    return Residuals(total, turns + len(cuts) + 1, looped_kept + kept_bytes, sum(attention.values()), largest)


def _attention_sizes(equations: Iterable[JaxprEqn]) -> set[tuple[int, ...]]:
    """Return the sizes of products of queries and keys: a batched product that is exponentiated."""
    products, exponents = set[tuple[int, ...]](), set[tuple[int, ...]]()
    for equation in _all(equations):
        shape = shape_of(equation.outvars[0]) if equation.outvars else ()
        # softmax is recognised by its exponential. Axes of length 1 do not count.
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
        called = inlined_jaxpr(equation)
        if called is None:
            yield equation
        else:
            yield from _all(called.eqns)


def _by_shape(kept: Iterable[tuple[Any, tuple[int, ...]]]) -> collections.Counter[str]:
    bytes_by_shape = collections.Counter[str]()
    for variable, shape in kept:
        bytes_by_shape[f"{variable.aval.dtype}[{','.join(map(str, shape))}]"] += bytes_of(variable)
    return bytes_by_shape
