"""The factors of operations, written like the equations of einsum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from anytpu.program.axes import Factors, factors_of


def last_factors(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Factors:
    """Return the factors of the last equation of a function."""
    trace = jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct(shape, "float32") for shape in shapes])
    return factors_of(trace.jaxpr.eqns[-1])


def written(factors: Factors) -> str:
    """Return factors as "a(bc),d->ab,c": letters in the order of their first use, in brackets for a merged axis."""
    letters: dict[int, str] = {}

    def axis(own: tuple[int, ...]) -> str:
        text = "".join(letters.setdefault(factor, "abcdefghijkl"[len(letters)]) for factor in own)
        return text if len(text) == 1 else f"({text})"

    sides = [",".join("".join(map(axis, array)) for array in side) for side in (factors.operands, factors.results)]
    return "->".join(sides)


@pytest.mark.parametrize(
    ("shape", "new", "expected"),
    [
        ((2, 3, 4), (6, 4), "abc->(ab)c"),
        ((6, 4), (2, 3, 4), "(ab)c->abc"),
        ((8, 6), (16, 3), "a(bc)->(ab)c"),
        ((8, 6), (4, 12), "(ab)c->a(bc)"),
        ((24, 5), (2, 3, 4, 5), "(abc)d->abcd"),
        ((6, 4), (4, 6), "ab->cd"),
        ((4, 6, 5), (6, 20), "abc->d(ec)"),
        ((1, 6), (6, 1), "ab->bc"),
        ((0, 4), (0, 5), "ab->cd"),
    ],
)
def test_a_reshape_shares_the_factors_that_divide_axes_of_both_shapes(
    shape: tuple[int, ...], new: tuple[int, ...], expected: str
):
    factors = last_factors(lambda x: x.reshape(new), shape)

    assert written(factors) == expected
    sizes = [[jnp.prod(jnp.array([factors.sizes[factor] for factor in axis])) for axis in factors.operands[0]]]
    assert sizes == [list(shape)]


@pytest.mark.parametrize(
    ("function", "shapes", "expected", "summed"),
    [
        (lambda x, w: x @ w, [(2, 3), (3, 4)], "ab,bc->ac", [3]),
        (lambda x, y: lax.batch_matmul(x, y), [(2, 3, 4), (2, 4, 5)], "abc,acd->abd", [4]),
        (lambda x: x.T, [(2, 3)], "ab->ba", []),
        (lambda x: x.sum(0), [(2, 3)], "ab->b", [2]),
        (lambda x: x.max(0), [(2, 3)], "ab->b", []),
        (lambda x: jnp.broadcast_to(x, (5, 2, 3)), [(1, 3)], "ab->cdb", []),
        (lambda x, y: lax.concatenate([x, y], 0), [(2, 3), (2, 3)], "ab,cb->db", []),
        (lambda x, y: lax.optimization_barrier((x, y)), [(2, 3), (2, 3)], "ab,cd->ab,cd", []),
        (lambda x, w: lax.conv(x, w, (1, 1), "SAME"), [(2, 3, 8, 8), (5, 3, 3, 3)], "abcd,ebfg->aehi", [3, 3, 3]),
        (lambda x, i: x[i.astype("int32")], [(9, 4), (2, 3)], "ab,cde->cdb", []),
        (lambda x, i, u: x.at[i.astype("int32")].add(u), [(9, 4), (2,), (2, 4)], "ab,cd,cb->ab", []),
    ],
)
def test_factors_of_operations(
    function: Callable[..., Any], shapes: list[tuple[int, ...]], expected: str, summed: list[int]
):
    factors = last_factors(function, *shapes)

    assert (written(factors), [factors.sizes[factor] for (factor,) in factors.summed]) == (expected, summed)


@pytest.mark.parametrize(("groups", "depth"), [(1, 3 * 3 * 8), (4, 3 * 3 * 2)])
def test_a_convolution_multiplies_its_window(groups: int, depth: int):
    convolve = lambda x, w: lax.conv_general_dilated(  # noqa: E731
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups
    )

    assert last_factors(convolve, (1, 16, 16, 8), (3, 3, 8 // groups, 4)).depth == depth
