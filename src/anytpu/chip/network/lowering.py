"""`lowered`: lower a program to a StableHLO module, for the first platform that supports it.

Rule: all weights and inputs are arguments, in the order of their leaves. A program file supports the platforms that it
was written for. The choice of the platform does not change the computation.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.mlir import ir

from anytpu.errors import QuantizationError
from anytpu.program.lowering import PLATFORMS, one_device_step
from anytpu.program.placed import inside, placed_specs
from anytpu.program.program import Program


def lowered(program: Program) -> ir.Module:
    """Return the module of a program's step.

    Raises:
        QuantizationError: the program cannot be lowered.
    """
    step, said = one_device_step(program), ""
    for platform in PLATFORMS:
        # A fresh function each time: jit's cache would return a trace made under other settings.
        traced: Any = jax.jit(lambda state, batch: step(state, batch), keep_unused=True)
        try:
            with inside(program.placement):
                return (
                    traced.trace(*placed_specs(program)).lower(lowering_platforms=(platform,)).compiler_ir("stablehlo")
                )
        except (ValueError, NotImplementedError) as error:
            said = said or str(error).splitlines()[0]
    raise QuantizationError(f"The program {program.name!r} cannot be lowered to StableHLO: {said}")
