"""A function compiled with or without the CPU's own kernels, for the tests of each of them."""

import jax

from anytpu.engine.kernels import fast_kernels

QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options of XLA for tests that compare two forms of a program, not LLVM's code of them."""


def compiled(function, *args, fast: bool):
    """Compile a fresh copy of a function, with or without the CPU's own kernels, and run it."""
    jitted = jax.jit(lambda *values: function(*values))
    if not fast:
        return jitted.lower(*args).compile(QUICKLY)(*args)
    with fast_kernels():
        lowered = jitted.lower(*args)
    return lowered.compile(QUICKLY)(*args)
