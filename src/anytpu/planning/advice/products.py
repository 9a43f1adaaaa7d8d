"""`float32_share`: the share of a step's products that multiply float32 at the default precision.

Idea: the traced step shows the type in which the user's program computes. The compiled step does not: a matrix unit
rounds float32 to bfloat16. Gradients of master weights are float32 in a program that computes in bfloat16.

Rule: a product at a higher precision than the default is intended, and does not count as float32.
"""

from __future__ import annotations

import collections
import math
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from anytpu.program.jaxprs import inner_jaxprs, level_of


def float32_share(jaxpr: ClosedJaxpr) -> float | None:
    """Return the share of the FLOPs of products that multiply float32 at the default precision; None without products.

    Example:
        >>> traced = jax.make_jaxpr(lambda x: (x @ x).astype("bfloat16") @ x.astype("bfloat16"))(jnp.ones((4, 4)))
        >>> float32_share(traced)
        0.5
    """
    flops = collections.Counter[bool]()
    _count(jaxpr.jaxpr, 1, flops)
    total = flops.total()
    return flops[True] / total if total else None


def _count(jaxpr: Jaxpr, times: int, flops: collections.Counter[bool]) -> None:
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("dot_general", "conv_general_dilated"):
            flops[_is_float32(equation)] += times * _flops(equation)
        turns = equation.params["length"] if equation.primitive.name == "scan" else 1
        for inner in inner_jaxprs(equation):
            _count(level_of(inner), times * turns, flops)


def _is_float32(equation: JaxprEqn) -> bool:
    asked = equation.params["precision"]
    precisions = set(asked if isinstance(asked, tuple) else (asked,))
    types = {str(getattr(variable.aval, "dtype", "")) for variable in equation.invars}
    return types == {"float32"} and precisions <= {None, jax.lax.Precision.DEFAULT}


def _flops(equation: JaxprEqn) -> int:
    left, right, result = (_shape(variable) for variable in (*equation.invars[:2], equation.outvars[0]))
    out = math.prod(result)
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2 * out * math.prod(left[axis] for axis in contracted)
    features = equation.params["dimension_numbers"].rhs_spec[0]
    return 2 * out * math.prod(right) // max(right[features], 1)


def _shape(variable: Any) -> tuple[int, ...]:
    return getattr(variable.aval, "shape", ())
