"""The child process of the trial: compiles marked loops and compares their results with those of plain loops.

Idea: XLA aborts the process on a kernel with an unused parameter. `unneeded` and `constant` would become such kernels
without the measures in `small_loops.py`; the other loops represent typical user code. Exit code 0 means that all loops
passed, `trial.FAILED` that one failed.

Rule: the plain loops run first, and then the child prints `trial.BEGAN`. An earlier failure is not due to the mark.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from anytpu.engine import trial
from anytpu.engine.kernels import fast_kernels
from anytpu.engine.small_loops import MARK

_TOLERANCE = 1e-5
_EIGHTHS = np.arange(40, dtype="float32").reshape(8, 5) / 8


def unneeded(x: Any, y: Any) -> Any:
    """Run a loop with an operand, `y`, that XLA removes as unused."""
    return lax.fori_loop(0, 3, lambda _, x: lax.select(jnp.zeros(x.shape, bool), y, x * 2), x)


def constant(x: Any, y: Any) -> Any:
    """Run a small loop whose initial carry contains a constant, inside a loop that is not small."""

    def body(i: Any, x: Any) -> Any:
        inner = lax.fori_loop(0, 2, lambda j, pair: (pair[0] + j, pair[1] + j), (y, 0))
        return jnp.sort(x) + inner[0].sum() + inner[1] + i

    return lax.fori_loop(0, 3, body, x)


def network(w: Any, x: Any) -> Any:
    """Train a layer on one example per iteration."""

    def loss(w: Any, i: Any) -> Any:
        return -jax.nn.log_softmax(jax.nn.sigmoid(x[i] @ w)) @ x[i, :3]

    return lax.fori_loop(0, len(x), lambda i, w: w - 0.1 * jax.grad(loss)(w, i), w)


def nested(x: Any) -> Any:
    """Run a `while` loop that halves a vector until its sum is at most 1, inside a counted loop."""

    def body(_: Any, x: Any) -> Any:
        return lax.while_loop(lambda x: x.sum() > 1, lambda x: jnp.where(x > 0.1, x / 2, -x), x * 7)

    return lax.fori_loop(0, 3, body, x)


INPUTS = (
    (_EIGHTHS, _EIGHTHS[::-1]),
    (_EIGHTHS[0], _EIGHTHS),
    (_EIGHTHS[:5, :3], _EIGHTHS),
    (_EIGHTHS[1],),
)
"""Inputs of each loop of `all_loops`, in order."""


def all_loops(*inputs: Any) -> Any:
    """Run each loop, all in one program, because each program has a fixed compilation cost."""
    loops = (unneeded, constant, network, nested)
    return [loop(*arguments) for loop, arguments in zip(loops, inputs, strict=True)]


def main() -> int:
    """Run the trial. Return 0, or FAILED if no loop is marked, XLA rejects a loop, or a result differs."""
    # 1. Plain loops. A failure here is not a result of the trial.
    plain = jax.block_until_ready(jax.jit(all_loops)(*INPUTS))
    # 2. Marked loops. A lack of memory is not a result either.
    print(trial.BEGAN, flush=True)
    try:
        fault = _fault(plain)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            raise
        fault = f"XLA rejected the loops ({str(error).splitlines()[0][:300]})"
    if fault:
        print(fault, file=sys.stderr)
    return trial.FAILED if fault else 0


def _fault(plain: Any) -> str:
    """Run the marked loops, and return a description of the first fault, or ""."""
    with fast_kernels(layers=False), trial.skip_trial():
        # A fresh function: JAX's cache would return the plain lowering of `all_loops`.
        lowered = jax.jit(lambda *inputs: all_loops(*inputs)).lower(*INPUTS)
    if MARK not in lowered.as_text():
        return "no loop was marked"
    fast = lowered.compile()(*INPUTS)
    is_near = all(np.allclose(*pair, rtol=_TOLERANCE, atol=_TOLERANCE) for pair in zip(fast, plain, strict=True))
    return "" if is_near else "the result of a loop differs when it is one kernel"


if __name__ == "__main__":
    sys.exit(main())
