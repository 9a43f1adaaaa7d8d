"""`Placed`: a value of a step of the host, on its way into ONNX, and where its examples lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from anytpu.chip.network.lay import Lay


class Untranslatable(Exception):
    """ONNX has no operator for an operation of the host; says why."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """A value of a step.

    Attributes:
        value: its name in the model.
        shape: with the batch that the step was written for.
        lay: where its examples lie.
    """

    value: str
    shape: tuple[int, ...]
    lay: Lay


def open_shape(shape: Sequence[int], lay: Lay, size: int) -> np.ndarray:
    """Return a shape with `size` for the axis of the batch: -1 for any number, 1 for what is stretched."""
    return np.array([*shape[: lay.axis], size, *shape[lay.axis + 1 :]], np.int64)
