"""All uses of private names of JAX in anytpu, except those of `chip`.

Idea: a new JAX may move any private name. So only this file uses them, `tests/test_jax_private.py` checks each name,
and pyproject.toml sets an upper bound on the JAX version.

Rule: this file contains no policy. JAX is imported inside the functions, so that importing anytpu stays light.
"""

from __future__ import annotations

import sys
from typing import Any

PARSE_FLAGS = "from jaxlib import _jax; _jax.CompileOptions()"
"""Program of a child process. The first use of XLA parses XLA_FLAGS; no device is started."""


def has_started() -> bool:
    """Return whether JAX has started its devices. This does not import JAX."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bridge.backends_are_initialized()


def is_mapped(value: Any) -> bool:
    """Return whether a value traced under `vmap` may differ between the replicas, the lanes of the `vmap`.

    JAX has no public function for this (as of 0.12): a value independent of the mapped axis is not a batch tracer.
    """
    return type(value).__name__ == "BatchTracer" and getattr(value, "batch_dim", 0) is not None


def cpu_lowering(primitive: Any) -> Any:
    """Return the rule by which JAX lowers a primitive for the CPU."""
    from jax.interpreters import mlir

    rules = mlir._lowerings | mlir._platform_specific_lowerings["cpu"]
    return rules[primitive].rule


def kernel_context() -> Any:
    """Return an MLIR context that can parse the code of Pallas kernels.

    Raises:
        ImportError: this jaxlib has its dialects elsewhere.
        AttributeError: this jaxlib registers its dialects in another way.
    """
    from jax.extend.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mosaic.python import tpu

    context, registry = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    return context


def trace_settings() -> list[str]:
    """Return the settings of JAX on which a trace and its lowering depend, those of this thread included.

    Objects that have no text of their own are left out: the environment of mapped axes, which is empty outside traces.
    """
    from jax._src import config

    return [text for text in map(repr, config.trace_context()) if " at 0x" not in text]
