"""Constant operands: uniform, per channel, or general."""

from __future__ import annotations

import numpy as np

from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.recorder import uniform


def of_example(constant: np.ndarray, shape: tuple[int, ...], layout: BatchLayout) -> np.ndarray:
    """Return the part of a constant for one example, broadcast to a shape with a batch layout."""
    return layout.rows_first(np.broadcast_to(constant, shape))[0]


def per_channel(constant: np.ndarray, shape: tuple[int, ...], layout: BatchLayout) -> np.ndarray | None:
    """Return a constant that is equal at every position as float32 `(channels,)`; None for other constants."""
    example = of_example(constant, shape, layout)
    channels = example.shape[-1] if example.ndim else 1
    known = uniform(constant)
    if known is not None:
        return np.full(channels, known, np.float32)
    small = example[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in example.strides)]
    rows = small.reshape(-1, small.shape[-1])
    if not bool((rows == rows[:1]).all()):
        return None
    return np.array(np.broadcast_to(rows[0], channels), np.float32)
