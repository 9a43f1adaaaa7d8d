"""Whether a value differs between the replicas, while JAX traces them as lanes of a `vmap`."""

from __future__ import annotations

from typing import Any


def is_mapped(value: Any) -> bool:
    """Say whether a value that is being traced under `vmap` may differ between the replicas.

    JAX has no public name for this (as of 0.12): a value that does not depend on the mapped axis is no batch tracer.
    """
    return type(value).__name__ == "BatchTracer" and getattr(value, "batch_dim", 0) is not None
