"""`numerics="tpu"`: float32 products rounded like on a TPU's matrix units, on any machine.

Idea: the matrix units of a TPU multiply bfloat16 and accumulate in float32. At default precision, XLA rounds both
operands of a float32 matrix product or convolution to the nearest bfloat16. The product of two bfloat16 values is exact
in float32. So rounded operands in float32 arithmetic give the same result on a CPU or GPU, except for the order of the
sums. The step is rewritten before a backend compiles it. Both operands of each such operation are rounded, in the
forward pass, the backward pass and the optimizer.

Rule: the rewriting is the last transformation, after differentiation and the mapping over replicas. These stay
unchanged: operations with precision "high" or "highest", operands of other dtypes than float32, Pallas kernels, and
operations outside the matrix units. (A TPU also rounds parts of complex64, and has no float64.) docs/decisions/0012
describes how a TPU's compiler treats all these.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var, new_jaxpr_eqn, no_effects

from anytpu.program.jaxprs import with_items, with_rewritten_trace
from anytpu.program.program import Tree
from anytpu.system.cores import Numerics

PRODUCTS = frozenset(["conv_general_dilated", "dot_general", "ragged_dot_general"])
"""Primitives that run on the matrix units. `jax.numpy.linalg` and Fourier transforms contain products too, but request
the highest precision for them."""

_KERNELS = frozenset(["pallas_call"])
_DEFAULT_PRECISIONS = (None, lax.Precision.DEFAULT, lax.DotAlgorithmPreset.DEFAULT)
"""Precisions that leave the choice to the backend."""

_BFLOAT16_BITS = {"exponent_bits": 8, "mantissa_bits": 7}

Step = Callable[[Tree, Tree], tuple[Tree, Tree]]


def apply_numerics(numerics: Numerics, step: Step) -> Step:
    """Return the step: unchanged for "machine", with the operands of its products rounded to bfloat16 for "tpu".

    Args:
        numerics: "machine" or "tpu".
        step: `(state, batch) -> (state, outputs)`, after all other transformations.

    Example:
        >>> step = apply_numerics("tpu", lambda state, batch: (state, state @ batch))
        >>> float(step(jnp.ones((1, 1)), jnp.full((1, 1), 1 + 2.0**-10))[1][0, 0])
        1.0
    """
    return with_rewritten_trace(step, round_products) if numerics == "tpu" else step


def round_products(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Round the operands of all float32 products of a traced function, including those in nested functions."""
    return _ProductRounding().rewrite(closed)


def rounds_operands(equation: JaxprEqn) -> bool:
    """Return whether a TPU rounds the float32 operands of an operation."""
    if equation.primitive.name not in PRODUCTS:
        return False
    precision = equation.params["precision"]
    precisions = precision if isinstance(precision, tuple) else (precision,)
    return all(each in _DEFAULT_PRECISIONS for each in precisions)


class _ProductRounding:
    """One pass over a traced function. Each nested function is rewritten once, so that its calls share the result."""

    def __init__(self) -> None:
        self._rewritten: dict[int, tuple[Any, Any]] = {}

    def rewrite(self, value: Any) -> Any:
        """Rewrite the functions in a parameter of an operation; return any other value unchanged."""
        if isinstance(value, tuple | list):
            items = [self.rewrite(item) for item in value]
            if all(map(operator.is_, items, value)):
                return value
            return with_items(value, items)
        if not isinstance(value, ClosedJaxpr | Jaxpr):
            return value
        if id(value) not in self._rewritten:
            # The original is kept too: an id is unique only while its object exists.
            self._rewritten[id(value)] = value, self._rewrite_function(value)
        return self._rewritten[id(value)][1]

    def _rewrite_function(self, function: ClosedJaxpr | Jaxpr) -> ClosedJaxpr | Jaxpr:
        if not isinstance(function, Jaxpr):  # Before jax 0.11, which merged the two classes.
            return function.replace(jaxpr=self.rewrite(function.jaxpr))
        rounded: dict[Var, Var] = {}
        equations: list[JaxprEqn] = []
        for equation in function.eqns:
            if rounds_operands(equation):
                operands = [_round_operand(operand, equation, rounded, equations) for operand in equation.invars[:2]]
                equations.append(equation.replace(invars=[*operands, *equation.invars[2:]]))
            elif equation.primitive.name in _KERNELS:
                equations.append(equation)
            else:
                params = {name: self.rewrite(value) for name, value in equation.params.items()}
                equations.append(equation.replace(params=params))
        return function.replace(eqns=equations)


def _round_operand(operand: Any, equation: JaxprEqn, rounded: dict[Var, Var], equations: list[JaxprEqn]) -> Any:
    """Append an equation that rounds an operand of `equation`, and return the result.

    Args:
        operand: operand of `equation`; returned unchanged unless it is float32.
        equation: product that uses the operand.
        rounded: rounded variable of each operand so far; an operand of several products is rounded once.
        equations: equations of the rewritten function so far.
    """
    if operand.aval.dtype != jnp.float32:
        return operand
    if isinstance(operand, Var) and operand in rounded:
        return rounded[operand]
    result = Var(operand.aval)
    fields = [operand], [result], lax.reduce_precision_p, dict(_BFLOAT16_BITS), no_effects
    equations.append(new_jaxpr_eqn(*fields, equation.source_info, equation.ctx))
    if isinstance(operand, Var):
        rounded[operand] = result
    return result
