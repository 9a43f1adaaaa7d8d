"""`check_finite`: check that a step of the host, given finite inputs, produces no NaN or infinity.

Idea: the chip's numbers are integers, so a small number is 0 there, and a division by it has no finite result. A
look-up beyond the end of a table gives no result either. In float32 that would go on silently, and become a finite
number after the next layer.

Rule: infinities that the model itself contains, as masks do, are allowed on the host; a NaN never is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anytpu.chip.graph.nodes import HostStep
from anytpu.chip.network.operations import Operation
from anytpu.errors import HostStepError


def check_finite(step: HostStep, inputs: Sequence[np.ndarray], result: np.ndarray, *, held: bool) -> None:
    """Raise `HostStepError` if a step of the host has produced a NaN or an infinity.

    Args:
        step: the step; the error may name its inputs.
        inputs: its inputs, `(rows, height, width, channels)` each.
        result: its result, `(rows, height, width, channels)`.
        held: whether the result becomes a tensor of the chip, which has no infinities.
    """
    if result.dtype.kind != "f" or np.isfinite(result).all():
        return
    masks = not held and any(map(_has_infinity, step.steps.operations))
    bad = np.isnan(result) if masks else ~np.isfinite(result)
    rows = bad.any(axis=(1, 2, 3))
    if not rows.any():
        return
    row = int(np.argmax(rows))
    number = result[row][bad[row]][0]
    made = "a NaN" if np.isnan(number) else "an infinity"
    raise HostStepError(f"The host's step {step.name!r} made {made}", row, _reason(step, inputs, row))


def _has_infinity(operation: Operation) -> bool:
    """Return whether an operation has an infinite constant; the initial value of a reduction is not a mask."""
    constants = [
        operand for operand in operation.operands if isinstance(operand, np.ndarray) and operand.dtype.kind == "f"
    ]
    return not operation.name.startswith("reduce") and any(bool(np.isinf(constant).any()) for constant in constants)


def _reason(step: HostStep, inputs: Sequence[np.ndarray], row: int) -> str:
    """Return the reason, as the rest of a sentence."""
    sizes = [_size(operation) for operation in step.steps.operations if operation.name == "gather"]
    for name, array in zip(step.inputs, inputs, strict=True):
        if array.dtype.kind in "iu" and len(sizes) == 1 and sizes[0]:
            beyond = array[row][(array[row] >= sizes[0]) | (array[row] < 0)]
            if beyond.size:
                return f": {name!r} has {int(beyond[0])} there, and its table has the rows 0 to {sizes[0] - 1}."
    return (
        ". A small value is 0 in the chip's integers, and a division by it, or its logarithm, has no result: keep "
        "it away from 0, as in x / (0.1 + y), or compile with activation_bits=16."
    )


def _size(gather: Operation) -> int:
    """Return the number of rows of a look-up's table; 0 for a look-up along several axes, or in a computed table."""
    table, axes = gather.operands[0], gather.attributes["dimension_numbers"]["start_index_map"]
    return table.shape[axes[0]] if isinstance(table, np.ndarray) and len(axes) == 1 else 0
