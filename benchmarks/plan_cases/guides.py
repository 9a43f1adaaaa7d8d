"""Cases from guides that print what their examples took."""

from __future__ import annotations

import functools

from plan_cases.case import Case
from plan_cases.micro import matmul

# Side of the square bfloat16 matrices: seconds of a product by XLA, the mean of 100 calls that were each waited for.
_V5E_MATMULS = {1024: 0.00011943008983507753, 4096: 0.0008272899803705514, 8192: 0.006047147869830951}


def _v5e_matmul(side: int, seconds: float) -> Case:
    return Case(
        name=f"matmul_{side}_v5e_host",
        family="guide_v5e",
        kind="matmul",
        target="v5e-1",
        measured_s=seconds,
        arithmetic="as printed: the mean of 100 calls, each waited for",
        source="jax-ml/jax docs/pallas/tpu/matmul.ipynb, XLA matmul",
        trust="A",
        build=functools.partial(matmul, side, side, side),
        stack="JAX 0.4",
        year=2024,
    )


CASES = tuple(_v5e_matmul(side, seconds) for side, seconds in _V5E_MATMULS.items())
"""One operation each."""
