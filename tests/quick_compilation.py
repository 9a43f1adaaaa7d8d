"""Programs of tests compile in a fifth of the time: without LLVM's optimizations, and without XLA's fusion emitters.

XLA of JAX 0.12 knows no option for the emitters: there they stay. JAX's cache of programs gets whole entries only, so a
process that is killed may write to it. Import this file before the first program is compiled. It holds where
JAX_DISABLE_MOST_OPTIMIZATIONS does, on CPU devices only.
"""

import os
import threading
from typing import Any

import jax
from jax._src import compiler, lru_cache

_options_of_jax = compiler.get_compile_options
without_emitters = jax.__version_info__ < (0, 12)
"""False while bits are compared with those of a new process, which does not import this file."""


def _quick_options(*args: Any, backend: Any = None, **settings: Any) -> Any:
    options = _options_of_jax(*args, backend=backend, **settings)
    is_quick = without_emitters and jax.config.read("jax_disable_most_optimizations")
    if is_quick and backend is not None and backend.platform == "cpu":
        options.env_option_overrides = [*options.env_option_overrides, ("xla_cpu_use_fusion_emitters", False)]
    return options


def _put_at_once(self: lru_cache.LRUCache, key: str, value: bytes) -> None:
    path = self.path / f"{key}{lru_cache._CACHE_SUFFIX}"
    part = path.with_name(f"{os.getpid()}-{threading.get_ident()}.part")
    part.write_bytes(value)
    part.replace(path)


def keep_programs(folder: str | None) -> None:
    """Keep XLA's programs in a folder from test to test and for other processes: many compile the same small ones."""
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


compiler.get_compile_options = _quick_options
lru_cache.LRUCache.put = _put_at_once
