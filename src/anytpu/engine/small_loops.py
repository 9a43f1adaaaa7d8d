"""Small loops on the CPU: one kernel a loop in place of a dozen a turn.

Idea: XLA's CPU compiler runs the body of a loop as a sequence of kernels, and each costs it about 0.1 us to start.
Where a turn itself takes less than that (a training step on one example of a small network), the loop is as slow as the
starting. Marked as a small call, the whole loop becomes one kernel.

Rule: only a loop whose turn is surely small is marked: arrays that fit in the first-level cache, arithmetic element by
element, sums, products of a matrix with a vector. Anything else runs as XLA runs it. The mark is
`xla_cpu_small_call`, which XLA's own pass gives to loops that touch less than 1 KiB (seen in jaxlib 0.10.2).
"""

from __future__ import annotations

import contextvars
import math
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import jaxprs_in_params
from jax.extend.core.primitives import while_p
from jax.interpreters import mlir

_MOST_ARRAY_BYTES = 8 * 2**10
_MOST_BYTES = 256 * 2**10
_MOST_PRODUCTS = 16 * 2**10

_NAMES = """
abs add add_any and argmax argmin broadcast_in_dim ceil clamp concatenate convert_element_type copy cos div
dynamic_slice dynamic_update_slice eq exp exp2 expand_dims expm1 floor gather ge gt integer_pow iota is_finite le log
log1p logistic lt max min mul ne neg not or pad pow reduce_and reduce_max reduce_min reduce_or reduce_sum rem reshape
rsqrt select_n sign sin slice sqrt square squeeze stop_gradient sub tanh transpose xor
"""
_SMALL = frozenset(_NAMES.split())
_CALLS = frozenset(["closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "jit", "pjit"])

_MARKED = contextvars.ContextVar("anytpu_small_loop", default=False)


def lower_while(plain: Any, context: Any, *operands: Any, **parameters: Any) -> Any:
    """Lower a loop: JAX's rule, called `plain` here, or the marked one."""
    if _MARKED.get() or not is_small_loop(parameters):
        return plain(context, *operands, **parameters)

    def marked(*values: Any) -> Any:
        with set_xla_metadata(xla_cpu_small_call="true", inlineable="false"):
            return jax.jit(lambda *values: while_p.bind(*values, **parameters))(*values)

    before = _MARKED.set(True)
    try:
        lower: Any = mlir.lower_fun(marked, multiple_results=True)
        return lower(context, *operands)
    finally:
        _MARKED.reset(before)


def is_small_loop(parameters: Any) -> bool:
    """Say whether one turn of a loop is small, by the parameters of JAX's `while`."""
    bodies = [parameters["cond_jaxpr"].jaxpr, parameters["body_jaxpr"].jaxpr]
    carried = bodies[1].invars[parameters["body_nconsts"] :]
    if any(after is before for after, before in zip(bodies[1].outvars, carried, strict=True)):
        # A state that no turn changes (a prediction's weights): XLA of jaxlib 0.10.2 aborts the process on it.
        return False
    total = [_bytes_of(body) for body in bodies]
    return None not in total and sum(filter(None, total)) <= _MOST_BYTES


def _bytes_of(jaxpr: Any) -> int | None:
    """Return the bytes that a function of arrays makes; None when it does what is not small."""
    total = 0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in _CALLS:
            inner = [_bytes_of(getattr(one, "jaxpr", one)) for one in jaxprs_in_params(equation.params)]
            if None in inner:
                return None
            total += sum(filter(None, inner))
        elif name not in _SMALL and not (name == "dot_general" and _is_by_a_vector(equation)):
            return None
        sizes = [math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in equation.outvars]
        if max(sizes, default=0) > _MOST_ARRAY_BYTES:
            return None
        total += sum(sizes)
    return total


def _is_by_a_vector(equation: Any) -> bool:
    """Say whether a product is that of a small matrix with a vector."""
    left, right = (one.aval.shape for one in equation.invars)
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    depth = math.prod(left[axis] for axis in contracted)
    outer = math.prod(left[axis] for axis in batch)
    rows = math.prod(left) // max(depth * outer, 1)
    columns = math.prod(right) // max(depth * outer, 1)
    return outer == 1 and min(rows, columns, depth) <= 1 and rows * columns * depth <= _MOST_PRODUCTS
