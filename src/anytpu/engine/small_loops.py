"""Small loops on the CPU: one kernel for a loop instead of a dozen per iteration.

Idea: XLA:CPU runs a loop body as a sequence of kernels, and the launch of each takes about 0.1 us. If an iteration
computes for less time than that, as a training step on one example of a small network does, launches dominate. Marked
as a small call, the whole loop becomes one kernel. The mark is `xla_cpu_small_call`, which an XLA pass sets on loops
that touch less than 1 KiB (seen in jaxlib 0.10.0 to 0.12.0).

Rule: XLA's pass sees the optimized code. A mark set before optimization must guarantee three conditions.

1. The kernel uses every parameter; otherwise XLA aborts the process ("All or none of the slices should have an explicit
   index"). The values that XLA will later remove or fold into constants are not known here. So the kernel also returns
   all its parameters, and a barrier before it prevents constant folding into it.
2. XLA lowers no part of it to a library call, which it then rejects ("Fusion kind not implemented on CPU"). So there is
   no product of two matrices, no convolution, and no sum of 4096 elements.
3. XLA splits no part of it over threads, which it then cannot link ("Failed to materialize symbols"). XLA splits an
   operation on 512 KiB. It also splits at a cost of 200,000, if there are as many operations as bytes. A byte
   read or written counts 10, an operation 1.

Further conditions limit the mark to tested kinds of loop. The arrays are float32, int32 or bool with at most two axes
longer than one; there is no sort, gather or concatenation. The jaxlib has passed the trial (`engine/trial.py`). The
engine's own loop around a step is never marked. XLA lowers every other loop as usual.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator
from typing import Any

import jax
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core import jaxprs_in_params
from jax.extend.core.primitives import while_p
from jax.interpreters import mlir

from anytpu.engine import trial

MARK = "xla_cpu_small_call"

# These limits keep a margin below the thresholds of conditions 2 and 3.
_MAX_RESULT_BYTES = 8 * 2**10
"""Maximum bytes of the result of one operation."""
_MAX_OPERAND_BYTES = 128 * 2**10
"""Maximum bytes of one carry or constant of the loop."""
_MAX_TOTAL_BYTES = 256 * 2**10
"""Maximum bytes of all operands and results in one iteration."""
_MAX_OPERATIONS = 18_000
"""Maximum number of scalar operations in one iteration."""
_MAX_REDUCED_ELEMENTS = 2 * 2**10
"""Maximum number of elements of a reduction, and of multiplications of a product."""

_ARITHMETIC = """
abs add add_any and convert_element_type div eq exp expm1 ge gt integer_pow is_finite le log log1p
logistic lt max min mul ne neg not or rsqrt select_n sign sqrt square sub tanh
"""
_MOVES = """
broadcast_in_dim copy dynamic_slice dynamic_update_slice expand_dims reshape slice squeeze
stop_gradient transpose
"""
_REDUCTIONS = frozenset(["reduce_max", "reduce_sum"])
_ALLOWED = frozenset([*_ARITHMETIC.split(), *_MOVES.split(), *_REDUCTIONS, "dot_general"])
_CALLS = frozenset(["closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "eval_jaxpr", "jit", "pjit"])
_OPERATIONS_PER_ELEMENT = {"logistic": 4, "log1p": 4, "expm1": 4} | dict.fromkeys(_MOVES.split(), 0)
_DTYPES = frozenset(["bool", "float32", "int32"])

_IS_INSIDE_MARKED = contextvars.ContextVar("anytpu_is_inside_marked_loop", default=False)
"""Whether the lowering is inside a marked loop, whose inner loops belong to its kernel."""
_SKIPS_NEXT = contextvars.ContextVar("anytpu_skips_next_loop", default=False)
"""Whether the next lowered loop is the engine's own, which is never marked."""


@contextlib.contextmanager
def skip_next_loop(is_skipped: bool = True) -> Iterator[None]:
    """Return a context in which the first lowered loop is never marked; the loops inside it may be.

    Args:
        is_skipped: False makes the context have no effect.
    """
    before = _SKIPS_NEXT.set(is_skipped)
    try:
        yield
    finally:
        _SKIPS_NEXT.reset(before)


def lower_while(plain: Any, context: Any, *operands: Any, **parameters: Any) -> Any:
    """Lower a loop: marked if it is small, else by `plain`, JAX's own rule."""
    # 1. Decide. The trial comes last, because the first trial on a machine takes two seconds.
    is_skipped = _IS_INSIDE_MARKED.get() or _SKIPS_NEXT.get()
    _SKIPS_NEXT.set(False)
    if is_skipped or not is_small_loop(parameters) or not trial.has_passed():
        return plain(context, *operands, **parameters)

    # 2. Wrap the loop in a function that returns its parameters too, so that it uses all of them (condition 1).
    def kernel(*values: Any) -> Any:
        values = lax.optimization_barrier(values)  # Without it `jax.jit` forwards a returned parameter to its caller.
        return while_p.bind(*values, **parameters), values

    # 3. Mark the call of that function. The barrier prevents constant folding into it.
    def marked(*values: Any) -> Any:
        with set_xla_metadata(**{MARK: "true", "inlineable": "false"}):
            return jax.jit(kernel)(*lax.optimization_barrier(values))[0]

    # 4. Lower it. The loop itself, and loops inside it, take JAX's rule.
    before = _IS_INSIDE_MARKED.set(True)
    try:
        lower: Any = mlir.lower_fun(marked, multiple_results=True)
        return lower(context, *operands)
    finally:
        _IS_INSIDE_MARKED.reset(before)


def is_small_loop(parameters: Any) -> bool:
    """Return whether a loop satisfies the limits above, by the parameters of JAX's `while`."""
    bodies = [parameters["cond_jaxpr"].jaxpr, parameters["body_jaxpr"].jaxpr]
    operands = [v.aval for body in bodies for v in body.invars]
    if not all(_is_supported(aval) and _bytes(aval) <= _MAX_OPERAND_BYTES for aval in operands):
        return False
    costs = [_function_cost(body) for body in bodies]
    if None in costs:
        return False
    result_bytes, operations = (sum(cost[kind] for cost in costs if cost) for kind in (0, 1))
    return result_bytes + sum(map(_bytes, operands)) <= _MAX_TOTAL_BYTES and operations <= _MAX_OPERATIONS


def _function_cost(jaxpr: Any) -> tuple[int, int] | None:
    """Return the result bytes and the scalar operations of a jaxpr; None if one of its operations is not allowed."""
    total = (0, 0)
    for equation in jaxpr.eqns:
        if equation.primitive.name in _CALLS:
            callees = jaxprs_in_params(equation.params)
            costs = [_function_cost(getattr(callee, "jaxpr", callee)) for callee in callees]
        else:
            costs = [_operation_cost(equation)]
        for cost in costs:
            if cost is None:
                return None
            total = (total[0] + cost[0], total[1] + cost[1])
    return total


def _operation_cost(equation: Any) -> tuple[int, int] | None:
    """Return the result bytes and the scalar operations of one operation; None if it is not allowed."""
    name, result = equation.primitive.name, equation.outvars[0].aval
    if name not in _ALLOWED or not _is_supported(result) or _bytes(result) > _MAX_RESULT_BYTES:
        return None
    if name == "dot_general":
        operations = _vector_product_operations(equation)
        return None if operations is None else (_bytes(result), operations)
    if name in _REDUCTIONS:
        elements = equation.invars[0].aval.size
        return (_bytes(result), elements) if elements <= _MAX_REDUCED_ELEMENTS else None
    per_element = equation.params["y"] if name == "integer_pow" else _OPERATIONS_PER_ELEMENT.get(name, 1)
    return _bytes(result), abs(per_element) * result.size


def _vector_product_operations(equation: Any) -> int | None:
    """Return the scalar operations of a product with at least one vector; None for larger or matrix products."""
    left, right = (operand.aval.shape for operand in equation.invars)
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    depth = math.prod(left[axis] for axis in contracted)
    rows, columns = (math.prod(shape) // depth for shape in (left, right))
    if any(left[axis] != 1 for axis in batch) or (contracted and min(rows, columns) > 1):
        return None
    multiplications = rows * columns * depth
    return 2 * multiplications if multiplications <= _MAX_REDUCED_ELEMENTS else None


def _is_supported(aval: Any) -> bool:
    """Return whether an array is of a tested kind: a tested dtype, and at most two axes longer than one."""
    shape = aval.shape
    return str(aval.dtype) in _DTYPES and 0 not in shape and len(shape) <= 4 and sum(size > 1 for size in shape) <= 2


def _bytes(aval: Any) -> int:
    return aval.size * aval.dtype.itemsize
