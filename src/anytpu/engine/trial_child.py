"""The child of the trial: compiles small loops as one kernel each and compares their numbers with those of plain loops.

Idea: XLA ends the process on a kernel with a parameter that nothing uses. `unneeded` and `constant` are such loops, as
`small_loops.py` marks them; the others are what a user's loop is made of. The exit code 0 says that all of them passed,
`trial.FAILED` that one did not.

Rule: plain loops run first, and `trial.BEGAN` is printed then. What fails before it is no fault of the small loops.
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
    """Loop over a value that XLA finds out not to need."""
    return lax.fori_loop(0, 3, lambda _, x: lax.select(jnp.zeros(x.shape, bool), y, x * 2), x)


def constant(x: Any, y: Any) -> Any:
    """Start a loop, inside of one that is not small, from numbers that XLA knows."""

    def turn(i: Any, x: Any) -> Any:
        inner = lax.fori_loop(0, 2, lambda j, pair: (pair[0] + j, pair[1] + j), (y, 0))
        return jnp.sort(x) + inner[0].sum() + inner[1] + i

    return lax.fori_loop(0, 3, turn, x)


def network(w: Any, x: Any) -> Any:
    """Train a layer on one example after the other."""

    def loss(w: Any, i: Any) -> Any:
        return -jax.nn.log_softmax(jax.nn.sigmoid(x[i] @ w)) @ x[i, :3]

    return lax.fori_loop(0, len(x), lambda i, w: w - 0.1 * jax.grad(loss)(w, i), w)


def nested(x: Any) -> Any:
    """Halve until the sum is small, in a loop."""

    def turn(_: Any, x: Any) -> Any:
        return lax.while_loop(lambda x: x.sum() > 1, lambda x: jnp.where(x > 0.1, x / 2, -x), x * 7)

    return lax.fori_loop(0, 3, turn, x)


STARTS = (
    (_EIGHTHS, _EIGHTHS[::-1]),
    (_EIGHTHS[0], _EIGHTHS),
    (_EIGHTHS[:5, :3], _EIGHTHS),
    (_EIGHTHS[1],),
)
"""What each loop of `all_loops` starts from."""


def all_loops(*starts: Any) -> Any:
    """Run each loop. They are one program, since every program costs the compiler its time."""
    loops = (unneeded, constant, network, nested)
    return [loop(*given) for loop, given in zip(loops, starts, strict=True)]


def main() -> int:
    """Try the loops, and return 0, or FAILED where they are not marked, not compiled, or compute other numbers."""
    plain = jax.block_until_ready(jax.jit(all_loops)(*STARTS))
    print(trial.BEGAN, flush=True)
    try:
        fault = _fault(plain)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            raise
        fault = f"XLA refused the loops ({str(error).splitlines()[0][:300]})"
    if fault:
        print(fault, file=sys.stderr)
    return trial.FAILED if fault else 0


def _fault(plain: Any) -> str:
    with fast_kernels(lstm=False), trial.taken_as_passed():
        lowered = jax.jit(lambda *starts: all_loops(*starts)).lower(*STARTS)
    if MARK not in lowered.as_text():
        return "no loop was marked"
    fast = lowered.compile()(*STARTS)
    is_near = all(np.allclose(*pair, rtol=_TOLERANCE, atol=_TOLERANCE) for pair in zip(fast, plain, strict=True))
    return "" if is_near else "as one kernel, a loop computed other numbers"


if __name__ == "__main__":
    sys.exit(main())
