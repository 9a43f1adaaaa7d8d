"""Operations that are run from their text: XLA knows them all, and each is compiled once.

Idea: an operation is written as a module whose main function it is; that can stand in a file, and be called on arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from anytpu.program.stablehlo import parse


def call(text: str, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the results of the operation that a module of StableHLO holds.

    Args:
        text: the module.
        operands: of the shapes and dtypes of its arguments.
    """
    return [np.asarray(result) for result in _compiled(text)(*operands)]


@functools.lru_cache(maxsize=1024)
def _compiled(text: str) -> Callable[..., Any]:
    return jax.jit(parse(text.encode()).exported.call)
