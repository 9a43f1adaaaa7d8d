"""`is_mapped`: whether a traced value may differ between the replicas, the lanes of a `vmap`."""

from __future__ import annotations

from typing import Any


def is_mapped(value: Any) -> bool:
    """Return whether a value traced under `vmap` may differ between the replicas.

    JAX has no public function for this (as of 0.12): a value independent of the mapped axis is not a batch tracer.
    """
    return type(value).__name__ == "BatchTracer" and getattr(value, "batch_dim", 0) is not None
