"""`BatchedValue`: an ONNX value of a host step, and the position of its batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from anytpu.chip.network.layout import BatchLayout


class UntranslatableError(Exception):
    """An operation of the host has no ONNX operator; the message says why."""


@dataclasses.dataclass(frozen=True)
class BatchedValue:
    """A value of a host step.

    Attributes:
        value: name of the value in the model.
        shape: shape for the batch size with which the step was traced.
        layout: position of the batch in the shape.
    """

    value: str
    shape: tuple[int, ...]
    layout: BatchLayout


def open_shape(shape: Sequence[int], layout: BatchLayout, size: int) -> np.ndarray:
    """Return a shape with `size` for the batch axis, int64: -1 for any size, 1 to broadcast."""
    return np.array([*shape[: layout.axis], size, *shape[layout.axis + 1 :]], np.int64)
