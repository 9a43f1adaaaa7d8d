"""StableHLO files, as text and as MLIR's bytecode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import mlir

from anytpu.program.stablehlo_file import read_stablehlo
from fuzz.battery import Battery
from fuzz.damage import TEXT


def _lowered() -> list[Any]:
    def network(w: Any, x: Any) -> Any:
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME")
        return w - y.mean(), jnp.sort(y), jax.lax.scan(lambda c, a: (c + a, c), jnp.zeros(y.shape[1:]), y)

    square = jax.ShapeDtypeStruct((4, 4), "float32")
    specs = (jax.ShapeDtypeStruct((4, 3, 3, 3), "float32"), jax.ShapeDtypeStruct((2, 3, 8, 8), "float32"))
    return [jax.jit(lambda w, x: jax.nn.relu(x @ w)).lower(square, square), jax.jit(network).lower(*specs)]


def texts() -> list[bytes]:
    """Return modules as text."""
    return [lowered.as_text().encode() for lowered in _lowered()]


def bytecodes() -> list[bytes]:
    """Return the same as bytecode."""
    return [mlir.module_to_bytecode(lowered.compiler_ir("stablehlo")) for lowered in _lowered()]


def read(path: Path) -> Any:
    """Read a program."""
    program = read_stablehlo(path)
    return [str(program.state), str(program.batch), program.mode]


# A child is started for each case.
BATTERIES = (
    Battery("stablehlo_text", texts, read, suffix=".mlir", damage=TEXT, limit_s=120, share=0.02),
    Battery("stablehlo_bytecode", bytecodes, read, suffix=".mlir", limit_s=120, share=0.02),
)
