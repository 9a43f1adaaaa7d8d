"""float64 in a program: refused, with the leaf or the line that introduces it.

Idea: no TPU computes with 64-bit floating point. XLA would emulate it, many times slower, and the plan would not say
why. So it is refused before compilation.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr

from anytpu.errors import PlanError
from anytpu.planning.compiler.places import operations
from anytpu.program.leaves import leaf_names, leaf_text, state_names
from anytpu.program.program import Program

_WIDE = frozenset({np.dtype("float64"), np.dtype("complex128")})
_INSTEAD = (
    "No TPU computes with it; XLA would do so in software, many times slower. Use float32, or leave JAX's 64 bits off: "
    "unset JAX_ENABLE_X64"
)


def refuse_wide(program: Program, jaxpr: ClosedJaxpr) -> None:
    """Raise `PlanError` if a leaf of the program, or an operation of its jaxpr, is float64."""
    names = (*state_names(program), *leaf_names(program.batch, "batch"))
    for name, leaf in zip(names, jax.tree.leaves((program.state, program.batch)), strict=True):
        if _is_wide(leaf):
            raise PlanError(f"{name!r} of the program {program.name!r} is {leaf_text(leaf)}. {_INSTEAD}.")
    for operation in operations(jaxpr):
        for result in operation.equation.outvars:
            if _is_wide(result.aval) and getattr(result.aval, "shape", ()):
                raise PlanError(
                    f"The program {program.name!r} computes {leaf_text(result.aval)}, in {operation.place}. {_INSTEAD}."
                )


def _is_wide(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) in _WIDE
