"""`outside_compilation`: call the host from a function that runs on the cores. `bfloat16_scope`: compute in bfloat16.

Rule: the host is called once for each core, when the values are computed, in unspecified order. The cores wait for the
call only if it returns a value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras

from anytpu.program.program import spec_of


def outside_compilation(computation: Callable, *args: Any, returns: Any = None) -> Any:
    """Call a Python function on the host, from a function that runs on the cores.

    Args:
        computation: takes the values of `args` as NumPy arrays. It may print, write files, use any library.
        args: arrays, numbers, or trees of them.
        returns: an example of the value that `computation` returns: a tree of arrays or `jax.ShapeDtypeStruct` of the
            same shapes and types. None if it returns nothing.

    Returns:
        The value that `computation` returns, or None.

    Example:
        >>> import math
        >>> gamma = lambda x: outside_compilation(lambda x: np.float32(math.gamma(x)), x, returns=np.float32(0))
        >>> float(rewrite(gamma, [5.0])[0])
        24.0
    """
    if returns is None:
        jax.debug.callback(lambda *values: _discard(computation(*values)), *args)
        return None
    return jax.pure_callback(computation, spec_of(returns), *args, vmap_method="sequential")


@contextlib.contextmanager
def bfloat16_scope() -> Iterator[None]:
    """Return a scope in which new Keras layers keep their variables in float32 and compute in bfloat16.

    It calls `keras.mixed_precision.set_dtype_policy("mixed_bfloat16")`, and restores the policy afterwards. The
    variables' gradients are float32.

    Example:
        >>> with bfloat16_scope():
        ...     layer = keras.layers.Dense(2)
        >>> layer.variable_dtype, layer.compute_dtype
        ('float32', 'bfloat16')
    """
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        yield
    finally:
        keras.config.set_dtype_policy(previous)


def _discard(_: Any) -> None:
    return None
