"""`resample`: record a product of an axis of positions with an up-sampling matrix as a transposed convolution.

Idea: bilinear up-sampling multiplies the height, and then the width, by a constant matrix. Its results of the same
remainder, divided by the factor, are a convolution of one small kernel over the picture with its edges repeated. So
all results are one transposed convolution, depthwise (`transposed.py`).

Rule: a matrix is compared with the one that the kernels make. Any other matrix stays as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anytpu.chip.network.parsing import TensorType

MAX_LINES = 2**14
"""Maximum number of positions that an operation copies one by one; a picture of 64 x 64 is doubled by 8,320."""

MAX_REACH = 2
"""Maximum distance of a position that contributes to a result, in positions of the input."""


def kernels_of(matrix: np.ndarray) -> np.ndarray | None:
    """Return the kernel of each remainder, `(factor, 2 * reach + 1)`; None if a matrix up-samples in another way.

    Args:
        matrix: `(positions, factor * positions)`.

    Example:
        >>> matrix = np.float32([[1, 0.75, 0.25, 0, 0, 0], [0, 0.25, 0.75, 0.75, 0.25, 0], [0, 0, 0, 0.25, 0.75, 1]])
        >>> kernels_of(matrix).tolist()
        [[0.25, 0.75, 0.0], [0.0, 0.75, 0.25]]
    """
    count, results = matrix.shape
    if results % count or results < 2 * count:
        return None
    factor, middle = results // count, count // 2
    columns = matrix[:, middle * factor : (middle + 1) * factor]
    offsets = np.flatnonzero(columns.any(axis=1)) - middle
    reach = int(np.abs(offsets).max(initial=0))
    if reach > MAX_REACH or not reach <= middle < count - reach:
        return None
    kernels = columns[middle - reach : middle + reach + 1].T
    made = np.zeros_like(matrix)
    for index in range(count):
        for offset in range(-reach, reach + 1):
            place = min(max(index + offset, 0), count - 1)
            made[place, index * factor : (index + 1) * factor] += kernels[:, offset + reach]
    return kernels if np.allclose(made, matrix, atol=1e-6) else None


def resample(recorder: Any, source: Any, axis: int, kernels: np.ndarray, layer: str) -> Any:
    """Record a picture with an axis up-sampled, and return it.

    Args:
        recorder: the `Recorder`.
        source: its symbol of the picture, `(batch, height, width, channels)`.
        axis: 1 for the height, 2 for the width.
        kernels: the result of `kernels_of`.
        layer: layer of the operations.
    """
    channels, dtype = source.shape[3], source.dtype
    factor, taps = kernels.shape

    def record(name: str, operands: list[Any], attributes: dict[str, Any], shape: tuple[int, ...]) -> Any:
        return recorder.record(name, operands, attributes, TensorType(shape, dtype), layer)

    def sized(size: int) -> tuple[int, ...]:
        return tuple(size if n == axis else length for n, length in enumerate(source.shape))

    def edge(start: int) -> Any:
        starts = [start if n == axis else 0 for n in range(4)]
        return recorder.cut(source, starts, sized(1), layer)

    reach, size = taps // 2, source.shape[axis]
    parts = [*[edge(0)] * reach, source, *[edge(size - 1)] * reach]
    padded = record("concatenate", parts, {"dimension": axis}, sized(size + 2 * reach)) if reach else source
    # A transposed convolution: its results of a remainder meet one kernel each.
    kernel = kernels[::-1].T.reshape((-1, 1, 1, 1) if axis == 1 else (1, -1, 1, 1))
    weights = np.broadcast_to(kernel, (*kernel.shape[:3], channels)).astype(dtype)
    steps, pads = ([factor, 1], [[factor - 1, factor - 1], [0, 0]])
    numbers = [0, 1, 2, 3]
    attributes = {
        "dimension_numbers": {"input": numbers, "kernel": numbers, "output": numbers},
        "feature_group_count": channels,
        "lhs_dilation": steps if axis == 1 else steps[::-1],
        "padding": pads if axis == 1 else pads[::-1],
    }
    return record("convolution", [padded, weights], attributes, sized(factor * size))
