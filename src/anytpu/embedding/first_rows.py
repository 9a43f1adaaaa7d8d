"""The first values of a large table, drawn in blocks.

Idea: JAX draws an array of random numbers with three times its memory besides. A table may fill most of the memory, so
its rows are drawn block by block.

Rule: only initializers whose numbers do not depend on the shape of the array, on one device. The numbers are not those
that Keras would draw at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras

MIN_BYTES = 2**26
"""Size of a table above which it is drawn in blocks."""

_BLOCK_ROWS = 2**12

_DRAWS: dict[type, Callable[[Any, Any, tuple[int, int], Any], jax.Array]] = {
    keras.initializers.RandomUniform: lambda initializer, key, shape, dtype: jax.random.uniform(
        key, shape, dtype, initializer.minval, initializer.maxval
    ),
    keras.initializers.RandomNormal: lambda initializer, key, shape, dtype: (
        initializer.mean + initializer.stddev * jax.random.normal(key, shape, dtype)
    ),
    keras.initializers.TruncatedNormal: lambda initializer, key, shape, dtype: (
        initializer.mean + initializer.stddev * jax.random.truncated_normal(key, -2, 2, shape, dtype)
    ),
}


def in_blocks(initializer: Any) -> Any:
    """Return an initializer that draws a large table in blocks of rows; other initializers unchanged.

    Args:
        initializer: a Keras initializer.
    """
    draw = _DRAWS.get(type(initializer))
    if draw is None or not isinstance(initializer.seed, int):
        return initializer

    def draw_blocks(shape: tuple[int, int], dtype: Any) -> Any:
        rows, width = shape
        if rows * width * jnp.dtype(dtype).itemsize < MIN_BYTES:
            return initializer(shape, dtype)
        # A divisor of the rows, so that nothing is cut off: large tables have a multiple of 1024.
        block = math.gcd(rows, _BLOCK_ROWS)

        @jax.jit
        def drawn(key: Any) -> jax.Array:
            keys = jax.random.split(key, rows // block)
            return jax.lax.map(lambda key: draw(initializer, key, (block, width), dtype), keys).reshape(shape)

        return drawn(jax.random.key(initializer.seed))

    return draw_blocks


def filled(value: float) -> Any:
    """Return the initializer of a constant; Keras's multiplies an array of ones, which takes twice the memory."""
    return lambda shape, dtype: jnp.full(shape, value, dtype)


class TableInitializer(keras.initializers.Initializer):
    """An initializer of Keras's class that calls a function.

    On a mesh Keras compiles the `__call__` of a large variable's initializer. JAX holds it by a weak reference, and the
    `__call__` of a function has none.

    Args:
        first_values: function `(shape, dtype) -> array`: a function of this file, of a stacked table, or of the user.
    """

    def __init__(self, first_values: Callable[[tuple[int, ...], Any], Any]) -> None:
        self._first_values = first_values

    def __call__(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """Return the first values of a variable."""
        return self._first_values(shape, dtype)
