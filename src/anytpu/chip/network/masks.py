"""`Masks`: a choice between two tensors, one for each position, as products with 0 or 1 and a sum.

Idea: a masked recurrent layer keeps its state where the mask is false. The chip has no instruction for a choice, but
`mask * new + (1 - mask) * old` is one. The host makes the mask as numbers once, for all time steps and channels.
Later slices and transposes of the mask are done to these numbers, on the chip.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anytpu.chip.network.operations import Operation
from anytpu.chip.network.parsing import TensorType

_TRUTH, _REAL = np.dtype(bool), np.dtype(np.float32)
_NEUTRAL = {"and": True, "or": False}


class Masks:
    """The masks of a recorder.

    Args:
        recorder: the `Recorder` that records with this object; its values are symbols and arrays.
    """

    def __init__(self, recorder: Any):
        self._recorder = recorder
        self._numbers: dict[tuple[str, int, bool], Any] = {}
        self._chosen: dict[tuple[object, ...], Any] = {}

    def choice(self, which: Any, first: Any, second: Any, result_type: TensorType, layer: str) -> Any:
        """Return the result of a `select` whose condition is a step of a mask; None: it has another form.

        The condition is the same for all channels. Both tensors are real numbers, or one of them is the constant 0.
        """
        shape, source = result_type.shape, self._same_for_channels(which)
        branches = [None if isinstance(branch, np.ndarray) else branch for branch in (first, second)]
        zeros = [branch for branch in (first, second) if isinstance(branch, np.ndarray)]
        if source is None or which.shape != shape or result_type.dtype != _REAL or len(zeros) > 1 or np.any(zeros):
            return None
        if not self._is_step(source):
            return None
        # A layer chooses its result and its state alike: they are one tensor.
        key = source, *(branch and branch.name for branch in branches)
        if key not in self._chosen:
            kept = []
            for branch, is_true in zip(branches, (True, False), strict=True):
                if branch is not None:
                    numbers = self._as_numbers(source, shape[-1], is_true)
                    mask = self._recorder.record("reshape", [numbers], {}, result_type, layer)
                    kept.append(self._recorder.record("multiply", [branch, mask], {}, result_type, layer))
            self._chosen[key] = self._recorder.record("add", kept, {}, result_type, layer) if kept[1:] else kept[0]
        return self._chosen[key]

    def _same_for_channels(self, which: Any) -> str | None:
        """Return the value, of one boolean for each position, that a condition repeats for all channels."""
        made = self._recorder.producers.get(which.name)
        if made is None or made.name != "broadcast_in_dim" or which.shape[-1] == 1:
            return None
        (source,), axes = made.values, list(made.attributes["broadcast_dimensions"])
        is_each = math.prod(self._recorder.types[source].shape) * which.shape[-1] == math.prod(which.shape)
        is_last = axes[-1:] == [len(which.shape) - 1] and self._recorder.types[source].shape[-1] > 1
        return source if axes == sorted(axes) and is_each and not is_last else None

    def _is_step(self, value: str) -> bool:
        """Return whether booleans are a part of a longer mask; one step of the host serves all of its parts."""
        made = self._recorder.producers.get(value)
        if made is None or made.name == "slice":
            return made is not None
        before = self._recorder.types[made.values[0]].shape if made.values else ()
        return (made.name == "not" or _moved(made, before, 1) is not None) and self._is_step(made.values[0])

    def _as_numbers(self, value: str, channels: int, is_true: bool) -> Any:
        """Return booleans as 1 and 0, or as 0 and 1, repeated along an axis of channels after all others."""
        key = value, channels, is_true
        if key not in self._numbers:
            self._numbers[key] = self._made(value, channels, is_true)
        return self._numbers[key]

    def _made(self, value: str, channels: int, is_true: bool) -> Any:
        recorder, made = self._recorder, self._recorder.producers.get(value)
        shape, layer = recorder.types[value].shape, made.layer if made is not None else ""
        if made is not None and made.name == "not":
            return self._as_numbers(made.values[0], channels, not is_true)
        moved = None if made is None else _moved(made, recorder.types[made.values[0]].shape, channels)
        whole_type = TensorType((*shape, channels), _REAL)
        if made is not None and moved is not None:
            source = self._as_numbers(made.values[0], channels, is_true)
            return recorder.record(moved[0], [source], moved[1], whole_type, layer)
        truth = recorder.symbol(value)
        if not is_true:
            truth = recorder.record("not", [truth], {}, TensorType(shape, _TRUTH), layer)
        numbers = recorder.record("convert", [truth], {}, TensorType(shape, _REAL), layer)
        axes = {"broadcast_dimensions": list(range(len(shape)))}
        return recorder.record("broadcast_in_dim", [numbers], axes, whole_type, layer)


def _moved(made: Operation, before: tuple[int, ...], channels: int) -> tuple[str, dict[str, Any]] | None:
    """Return an operation that only moves numbers, with an axis of channels after the others; None for another one."""
    given, count = made.attributes, len(before)
    if made.name == "transpose":
        return "transpose", {"permutation": [*given["permutation"], count]}
    if made.name == "slice":
        ends = {"start_indices": 0, "limit_indices": channels, "strides": 1}
        return "slice", {name: [*given[name], end] for name, end in ends.items()}
    ordered = list(given.get("broadcast_dimensions", ())) == sorted(given.get("broadcast_dimensions", ()))
    is_view = made.name == "reshape" or (made.name == "broadcast_in_dim" and ordered)
    is_one = made.name == "reduce" and _NEUTRAL.get(given["reducer"]) == np.ravel(made.operands[1])[0]
    same = math.prod(before) == math.prod(made.shape)
    return ("reshape", {}) if (is_view or is_one) and same else None
