"""A function compiled with or without the CPU's own kernels, for the tests of each of them."""

import jax

from anytpu.engine.kernels import fast_kernels


def compiled(function, *args, fast: bool):
    """Compile a fresh copy of a function, with or without the CPU's own kernels, and run it."""
    jitted = jax.jit(lambda *values: function(*values))
    # The forms are compared, not LLVM's code of them.
    quickly = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
    if not fast:
        return jitted.lower(*args).compile(quickly)(*args)
    with fast_kernels():
        lowered = jitted.lower(*args)
    return lowered.compile(quickly)(*args)
