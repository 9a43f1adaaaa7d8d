"""A function compiled with or without the CPU's own kernels, for the tests of each of them."""

import jax

from anytpu.engine.kernels import fast_kernels


def compiled(function, *args, fast: bool):
    """Compile a fresh copy of a function, with or without the CPU's own kernels, and run it."""
    jitted = jax.jit(lambda *values: function(*values))
    if not fast:
        return jitted.lower(*args).compile()(*args)
    with fast_kernels():
        lowered = jitted.lower(*args)
    return lowered.compile()(*args)
