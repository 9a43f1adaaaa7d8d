"""Programs of tests compile in a fifth of the time: without LLVM's optimizations, and without XLA's fusion emitters.

XLA of JAX 0.12 knows no option for the emitters: there they stay. Import this file before the first program is
compiled. It holds where JAX_DISABLE_MOST_OPTIMIZATIONS does, on CPU devices only.
"""

from typing import Any

import jax
from jax._src import compiler

_options_of_jax = compiler.get_compile_options
without_emitters = jax.__version_info__ < (0, 12)
"""False while bits are compared with those of a new process, which does not import this file."""


def _quick_options(*args: Any, backend: Any = None, **settings: Any) -> Any:
    options = _options_of_jax(*args, backend=backend, **settings)
    is_quick = without_emitters and jax.config.read("jax_disable_most_optimizations")
    if is_quick and backend is not None and backend.platform == "cpu":
        options.env_option_overrides = [*options.env_option_overrides, ("xla_cpu_use_fusion_emitters", False)]
    return options


compiler.get_compile_options = _quick_options
