"""Small loops on the CPU: one kernel a loop in place of a dozen a turn.

Idea: XLA's CPU compiler runs the body of a loop as a sequence of kernels, and each costs it about 0.1 us to start.
Where a turn itself takes less than that (a training step on one example of a small network), the loop is as slow as the
starting. Marked as a small call, the whole loop becomes one kernel. The mark is `xla_cpu_small_call`, which XLA's own
pass gives to loops that touch less than 1 KiB (seen in jaxlib 0.10.0 to 0.12.0).

Rule: XLA's own pass looks at the code when it is done; a mark that comes before must be sure of three things.
- Every parameter of the kernel is used in it, else XLA aborts the process ("All or none of the slices should have an
  explicit index"). What XLA finds to be needless or constant in the end, nobody knows here. So the kernel returns
  all of its parameters too, and a barrier before it keeps XLA from writing constants into it.
- XLA gives no part of it to a library, which it refuses afterwards ("Fusion kind not implemented on CPU"): no product
  of two matrices, no convolution, no sum of 4096 numbers.
- XLA divides no part of it among threads, which it cannot link ("Failed to materialize symbols"): that starts at
  200,000, where a number read or written counts 10 a byte and an operation 1, of which there must be as many as bytes;
  or at 512 KiB.
Beyond that a loop is marked only if it is of the kind that this was made for: float32, int32 and bool in at most two
axes, no sorting, gathering or joining; with a jaxlib that has passed the trial (`engine/trial.py`); and not the
engine's own loop around a step. Anything else runs as XLA runs it.
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

_MOST_ARRAY_BYTES = 8 * 2**10
_MOST_OPERAND_BYTES = 128 * 2**10
_MOST_BYTES = 256 * 2**10
_MOST_OPERATIONS = 18_000
_MOST_SUMMED = 2 * 2**10

_ARITHMETIC = """
abs add add_any and convert_element_type div eq exp expm1 ge gt integer_pow is_finite le log log1p
logistic lt max min mul ne neg not or rsqrt select_n sign sqrt square sub tanh
"""
_MOVES = """
broadcast_in_dim copy dynamic_slice dynamic_update_slice expand_dims reshape slice squeeze
stop_gradient transpose
"""
_REDUCTIONS = frozenset(["reduce_max", "reduce_sum"])
_SMALL = frozenset([*_ARITHMETIC.split(), *_MOVES.split(), *_REDUCTIONS, "dot_general"])
_CALLS = frozenset(["closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "eval_jaxpr", "jit", "pjit"])
_OPERATIONS = {"logistic": 4, "log1p": 4, "expm1": 4} | dict.fromkeys(_MOVES.split(), 0)
_DTYPES = frozenset(["bool", "float32", "int32"])

_IS_LEFT = contextvars.ContextVar("anytpu_small_loop_is_left", default=False)
_IS_NEXT_LEFT = contextvars.ContextVar("anytpu_next_loop_is_left", default=False)


@contextlib.contextmanager
def next_loop_left(is_left: bool = True) -> Iterator[None]:
    """Return a context in which the first loop that is lowered is left as it is; those inside of it are not."""
    before = _IS_NEXT_LEFT.set(is_left)
    try:
        yield
    finally:
        _IS_NEXT_LEFT.reset(before)


def lower_while(plain: Any, context: Any, *operands: Any, **parameters: Any) -> Any:
    """Lower a loop: JAX's rule, called `plain` here, or the marked one."""
    is_left = _IS_LEFT.get() or _IS_NEXT_LEFT.get()
    _IS_NEXT_LEFT.set(False)
    if is_left or not is_small_loop(parameters) or not trial.has_passed():
        return plain(context, *operands, **parameters)

    def kernel(*values: Any) -> Any:
        values = lax.optimization_barrier(values)  # JAX would not return a parameter as it is.
        return while_p.bind(*values, **parameters), values

    def marked(*values: Any) -> Any:
        with set_xla_metadata(**{MARK: "true", "inlineable": "false"}):
            return jax.jit(kernel)(*lax.optimization_barrier(values))[0]

    before = _IS_LEFT.set(True)
    try:
        lower: Any = mlir.lower_fun(marked, multiple_results=True)
        return lower(context, *operands)
    finally:
        _IS_LEFT.reset(before)


def is_small_loop(parameters: Any) -> bool:
    """Say whether a loop is surely small, by the parameters of JAX's `while`."""
    bodies = [parameters["cond_jaxpr"].jaxpr, parameters["body_jaxpr"].jaxpr]
    operands = [v.aval for body in bodies for v in body.invars]
    if not all(_is_plain(aval) and _bytes(aval) <= _MOST_OPERAND_BYTES for aval in operands):
        return False
    costs = [_cost(body) for body in bodies]
    if None in costs:
        return False
    made, operations = (sum(cost[kind] for cost in costs if cost) for kind in (0, 1))
    return made + sum(map(_bytes, operands)) <= _MOST_BYTES and operations <= _MOST_OPERATIONS


def _cost(jaxpr: Any) -> tuple[int, int] | None:
    """Return the bytes that a function of arrays makes and its operations; None when it does what is not small."""
    total = (0, 0)
    for equation in jaxpr.eqns:
        if equation.primitive.name in _CALLS:
            costs = [_cost(getattr(one, "jaxpr", one)) for one in jaxprs_in_params(equation.params)]
        else:
            costs = [_cost_of(equation)]
        for cost in costs:
            if cost is None:
                return None
            total = (total[0] + cost[0], total[1] + cost[1])
    return total


def _cost_of(equation: Any) -> tuple[int, int] | None:
    """Return the same for one operation."""
    name, made = equation.primitive.name, equation.outvars[0].aval
    if name not in _SMALL or not _is_plain(made) or _bytes(made) > _MOST_ARRAY_BYTES:
        return None
    if name == "dot_general":
        operations = _operations_by_a_vector(equation)
        return None if operations is None else (_bytes(made), operations)
    if name in _REDUCTIONS:
        summed = equation.invars[0].aval.size
        return (_bytes(made), summed) if summed <= _MOST_SUMMED else None
    each = equation.params["y"] if name == "integer_pow" else _OPERATIONS.get(name, 1)
    return _bytes(made), abs(each) * made.size


def _operations_by_a_vector(equation: Any) -> int | None:
    """Return the operations of a product with a vector, or of two vectors; None for one of matrices."""
    left, right = (one.aval.shape for one in equation.invars)
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    depth = math.prod(left[axis] for axis in contracted)
    rows, columns = (math.prod(shape) // depth for shape in (left, right))
    if any(left[axis] != 1 for axis in batch) or (contracted and min(rows, columns) > 1):
        return None
    products = rows * columns * depth
    return 2 * products if products <= _MOST_SUMMED else None


def _is_plain(aval: Any) -> bool:
    """Say whether an array is of the kind that was tried: no more than two axes that are longer than one."""
    shape = aval.shape
    return str(aval.dtype) in _DTYPES and 0 not in shape and len(shape) <= 4 and sum(size > 1 for size in shape) <= 2


def _bytes(aval: Any) -> int:
    return aval.size * aval.dtype.itemsize
