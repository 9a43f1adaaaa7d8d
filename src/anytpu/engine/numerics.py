"""`numerics="tpu"`: float32 products rounded as the matrix units of a TPU round them, on any machine.

Idea: the matrix units of a TPU multiply bfloat16 and add in float32. A float32 matrix product or convolution of which
nobody asked more is given to them with both operands rounded to the nearest bfloat16. The product of two such numbers
fits into a float32, so rounding the operands and going on in float32 does on a CPU or a GPU what they do, but for the
order of the sums. The step that a backend is about to compile is rewritten: in each such operation of the forward pass,
of the backward pass or of the optimizer both operands are rounded.

Rule: the rewriting sees the step when nothing more is done to it: differentiated, and laid over the replicas. Whatever
asks for precision "high" or "highest" is left alone; so are operands of another dtype than float32 (a TPU rounds parts
of complex64 too; float64 is no TPU's), Pallas kernels, and what is computed outside the matrix units. What a TPU's
compiler makes of all these is in docs/decisions/0012.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var, jaxpr_as_fun, new_jaxpr_eqn, no_effects

from anytpu.program.jaxprs import with_items
from anytpu.program.program import Tree
from anytpu.system.cores import Numerics

PRODUCTS = frozenset(["conv_general_dilated", "dot_general", "ragged_dot_general"])
"""The operations that the matrix units compute. Those of `jax.numpy.linalg` and of Fourier transforms are made of
products too, which ask for the highest precision."""

_KERNELS = frozenset(["pallas_call"])
_UNASKED = (None, lax.Precision.DEFAULT, lax.DotAlgorithmPreset.DEFAULT)
"""The precisions that leave the choice to the backend."""

_BITS = {"exponent_bits": 8, "mantissa_bits": 7}

Step = Callable[[Tree, Tree], tuple[Tree, Tree]]


def computed_by(numerics: Numerics, step: Step) -> Step:
    """Return the step as it is for numerics "machine", and one that rounds for "tpu"."""
    return rounding(step) if numerics == "tpu" else step


def rounding(step: Step) -> Step:
    """Return a step that computes what `step` does, with the operands of its float32 products rounded to bfloat16.

    Args:
        step: `(state, batch) -> (state, outputs)`, as a backend is about to compile it.

    Example:
        >>> step = rounding(lambda state, batch: (state, state @ batch))
        >>> float(step(jnp.ones((1, 1)), jnp.full((1, 1), 1 + 2.0**-10))[1][0, 0])
        1.0
    """

    def rounded_step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        closed, form = jax.make_jaxpr(step, return_shape=True)(state, batch)
        flat = jaxpr_as_fun(rounded(closed))
        return jax.tree.unflatten(jax.tree.structure(form), flat(*jax.tree.leaves((state, batch))))

    return rounded_step


def rounded(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a traced function with the operands of its float32 products rounded, however deep in it they are."""
    return _Rewriting().inside(closed)


def is_rounded(equation: JaxprEqn) -> bool:
    """Say whether an operation is one whose float32 operands a TPU rounds."""
    if equation.primitive.name not in PRODUCTS:
        return False
    asked = equation.params["precision"]
    asked = asked if isinstance(asked, tuple) else (asked,)
    return all(one in _UNASKED for one in asked)


class _Rewriting:
    """One rewriting of a traced function. A function inside it that is called twice stays one function."""

    def __init__(self) -> None:
        self._done: dict[int, tuple[Any, Any]] = {}

    def inside(self, value: Any) -> Any:
        """Return a parameter of an operation with the functions in it rewritten; anything else as it is."""
        if isinstance(value, tuple | list):
            parts = [self.inside(one) for one in value]
            if all(map(operator.is_, parts, value)):
                return value
            return with_items(value, parts)
        if not isinstance(value, ClosedJaxpr | Jaxpr):
            return value
        if id(value) not in self._done:
            # The function itself is kept too: its id stays its own.
            self._done[id(value)] = value, self._rewritten(value)
        return self._done[id(value)][1]

    def _rewritten(self, function: ClosedJaxpr | Jaxpr) -> ClosedJaxpr | Jaxpr:
        if not isinstance(function, Jaxpr):  # Until jax 0.11, which made the two one class.
            return function.replace(jaxpr=self.inside(function.jaxpr))
        seen: dict[Var, Var] = {}
        equations: list[JaxprEqn] = []
        for equation in function.eqns:
            if is_rounded(equation):
                operands = [_rounded(one, equation, seen, equations) for one in equation.invars[:2]]
                equations.append(equation.replace(invars=[*operands, *equation.invars[2:]]))
            elif equation.primitive.name in _KERNELS:
                equations.append(equation)
            else:
                params = {name: self.inside(value) for name, value in equation.params.items()}
                equations.append(equation.replace(params=params))
        return function.replace(eqns=equations)


def _rounded(operand: Any, equation: JaxprEqn, seen: dict[Var, Var], equations: list[JaxprEqn]) -> Any:
    """Return an operand, rounded by an equation before the one that uses it; by one only where several use it."""
    if operand.aval.dtype != jnp.float32:
        return operand
    if isinstance(operand, Var) and operand in seen:
        return seen[operand]
    made = Var(operand.aval)
    given = [operand], [made], lax.reduce_precision_p, dict(_BITS), no_effects
    equations.append(new_jaxpr_eqn(*given, equation.source_info, equation.ctx))
    if isinstance(operand, Var):
        seen[operand] = made
    return made
