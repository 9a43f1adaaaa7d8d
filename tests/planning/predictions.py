"""Predictions to test with: made by hand, every number chosen."""

from __future__ import annotations

import dataclasses
from typing import Any

from anytpu.planning.records import Buffer, MemoryUse, OpTime, Prediction, StepTime
from anytpu.planning.records.target import target_named

MIB = 1024**2


def prediction(
    ops: tuple[OpTime, ...] = (), memory: MemoryUse | None = None, tpu: str = "v3-8", **more: Any
) -> Prediction:
    """Return a prediction of a training step that takes as long as its operations."""
    ops = ops or (OpTime("fusion.1", "fusion", "matmul", 0.01, flops=1e11, layer="dense"),)
    step_s = sum(op.time_s for op in ops)
    fits = memory is None or memory.fits
    settings: dict[str, Any] = {
        "program": "net/train",
        "mode": "train",
        "target": target_named(tpu),
        "batch_size": 1024,
        "predicted_by": "the TPU compiler (libtpu 0.0.0)",
        "memory": memory or MemoryUse(9 * MIB, 10 * MIB),
        "time": StepTime(ops, step_s, (0.8 * step_s, 1.2 * step_s)) if fits else None,
    }
    return Prediction(**{**settings, **more})


def buffer(shape: str, size_bytes: int, name: str = "temporary", **more: Any) -> Buffer:
    """Return a buffer without padding."""
    whole = Buffer(name, "temporary", size_bytes, size_bytes, shape)
    return dataclasses.replace(whole, **more)
