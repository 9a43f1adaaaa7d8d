"""`ChannelOrder`: record a program whose channels come first as one whose channels come last, as the chip has them.

Idea: a convolution with channels first is one with channels last between two transposes. The transpose after it is
moved past the operations that follow. Both are gone when it meets the transpose before the next convolution.

Rule: only transposes that this file makes are moved. Those of the user stay where they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anytpu.chip.network import elementwise
from anytpu.chip.network.batching import follow
from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.parsing import TensorType
from anytpu.chip.network.resampling import MAX_LINES, kernels_of, resample
from anytpu.errors import QuantizationError

_PER_AXIS = {
    "pad": ("edge_padding_low", "edge_padding_high", "interior_padding"),
    "reduce_window": ("window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding"),
    "slice": ("start_indices", "limit_indices", "strides"),
}
"""Attributes with a value for each axis."""


class ChannelOrder:
    """The transposes of a recorder that can still be moved.

    Args:
        recorder: the `Recorder` that records with this object; its values are symbols and arrays.
    """

    def __init__(self, recorder: Any):
        self._recorder = recorder
        self._turned: dict[str, tuple[Any, tuple[int, ...]]] = {}
        self._flat: dict[str, tuple[Any, tuple[int, ...]]] = {}

    def record(
        self, name: str, operands: Sequence[Any], attributes: Mapping[str, Any], result_type: TensorType, layer: str
    ) -> Any:
        """Return the result of an operation, recorded with channels last; None: it has nothing to move."""
        if name == "convolution":
            return self._convolution(operands, attributes, result_type, layer)
        if name == "dot_general":
            flat = self._dense(operands, attributes, result_type, layer)
            return self._resampled(operands, attributes, result_type, layer) if flat is None else flat
        first = next((x.name for x in operands if not isinstance(x, np.ndarray) and x.name in self._turned), None)
        if first is None:
            return None
        source, order = self._turned[first]
        if name == "transpose":
            total = [order[axis] for axis in attributes["permutation"]]
            return source if total == sorted(total) else self._turn(source, total, result_type, layer)
        if name == "reshape":
            return self._reshape(operands[0], result_type, layer)
        moved = self._moved(name, operands, order)
        inner = self._attributes(name, attributes, order)
        if moved is None or (name == "reduce_window" and not _is_pool(inner, operands[1])):
            return None
        if name == "reduce":
            kept = [order[axis] for axis in range(len(order)) if axis not in attributes["dimensions"]]
            order = tuple(sorted(kept).index(axis) for axis in kept)
        shape = [0] * len(order)
        for axis, size in zip(order, result_type.shape, strict=True):
            shape[axis] = size
        result = self._recorder.record(name, moved, inner, TensorType(tuple(shape), result_type.dtype), layer)
        return self._turn(self._recorder.whole(result), order, result_type, layer)

    def _turn(self, source: Any, order: Sequence[int], result_type: TensorType, layer: str) -> Any:
        """Return a transposed value, which can be moved further."""
        if isinstance(source, np.ndarray):
            return source.transpose(order)
        if list(order) == sorted(order):
            return source
        turned = self._recorder.add("transpose", [source], {"permutation": list(order)}, result_type, layer)
        self._turned[turned.name] = source, tuple(order)
        return turned

    def _convolution(
        self, operands: Sequence[Any], attributes: Mapping[str, Any], result_type: TensorType, layer: str
    ) -> Any:
        picture, kernel = operands
        numbers, last = attributes["dimension_numbers"], list(range(len(result_type.shape)))
        if isinstance(picture, np.ndarray) or (list(numbers["input"]) == last and list(numbers["output"]) == last):
            return None
        shape = tuple(picture.shape[axis] for axis in numbers["input"])
        moved = self._recorder.record(
            "transpose", [picture], {"permutation": list(numbers["input"])}, TensorType(shape, picture.dtype), layer
        )
        inner = {**attributes, "dimension_numbers": {**numbers, "input": last, "output": last}}
        made_type = TensorType(tuple(result_type.shape[axis] for axis in numbers["output"]), result_type.dtype)
        made = self._recorder.record("convolution", [moved, kernel], inner, made_type, layer)
        order = [list(numbers["output"]).index(axis) for axis in last]
        return self._turn(self._recorder.whole(made), order, result_type, layer)

    def _moved(self, name: str, operands: Sequence[Any], order: tuple[int, ...]) -> list[Any] | None:
        """Return operands in the order before the transposes; None if one of them cannot be moved."""
        if name not in elementwise.NAMES and name not in (*_PER_AXIS, "concatenate", "reduce", "reverse"):
            return None
        back, moved = np.argsort(order), []
        for operand in operands:
            if isinstance(operand, np.ndarray):
                moved.append(operand.transpose(back) if operand.ndim == len(order) else operand)
            elif self._turned.get(operand.name, (None, ()))[1] == order:
                moved.append(self._turned[operand.name][0])
            else:
                return None
        return moved

    @staticmethod
    def _attributes(name: str, attributes: Mapping[str, Any], order: tuple[int, ...]) -> dict[str, Any]:
        """Return the attributes of an operation in the order before the transposes."""
        back, inner = np.argsort(order), dict(attributes)
        for key in _PER_AXIS.get(name, ()):
            inner[key] = [attributes[key][axis] for axis in back]
        if name == "concatenate":
            inner["dimension"] = order[attributes["dimension"]]
        if name in ("reduce", "reverse"):
            inner["dimensions"] = sorted(order[axis] for axis in attributes["dimensions"])
        return inner

    def _reshape(self, operand: Any, result_type: TensorType, layer: str) -> Any:
        """Note that a value is a flattened picture; the dense layer after it can have its weights reordered."""
        source, order = self._turned[operand.name]
        if order[0] != 0 or len(result_type.shape) != 2 or result_type.shape[0] != source.shape[0]:
            return None
        flat = self._recorder.add("reshape", [operand], {}, result_type, layer)
        self._flat[flat.name] = source, order
        return flat

    def _dense(
        self, operands: Sequence[Any], attributes: Mapping[str, Any], result_type: TensorType, layer: str
    ) -> Any:
        value, weights = operands
        numbers = attributes["dot_dimension_numbers"]
        known = None if isinstance(value, np.ndarray) else self._flat.get(value.name)
        if known is None or not isinstance(weights, np.ndarray) or list(numbers["lhs_contracting"]) != [1]:
            return None
        source, order = known
        (axis,) = numbers["rhs_contracting"]
        ordered = np.moveaxis(weights, axis, 0)
        picture = ordered.reshape(*(source.shape[place] for place in order[1:]), *ordered.shape[1:])
        back = [place - 1 for place in np.argsort(order)[1:]]
        kept = picture.transpose(*back, *range(len(back), picture.ndim)).reshape(ordered.shape)
        flat = self._recorder.record("reshape", [source], {}, TensorType(value.shape, value.dtype), layer)
        inner = {**attributes, "dot_dimension_numbers": {**numbers, "rhs_contracting": [0]}}
        return self._recorder.record("dot_general", [flat, np.ascontiguousarray(kept)], inner, result_type, layer)

    def _resampled(
        self, operands: Sequence[Any], attributes: Mapping[str, Any], result_type: TensorType, layer: str
    ) -> Any:
        """Return the product of an axis of positions with an up-sampling matrix; its channels stay last."""
        value, matrix = operands
        numbers = attributes["dot_dimension_numbers"]
        if isinstance(value, np.ndarray) or not isinstance(matrix, np.ndarray) or matrix.ndim != 2:
            return None
        source, order = self._turned.get(value.name, (value, tuple(range(len(value.shape)))))
        contracted = list(numbers["lhs_contracting"])
        if len(contracted) != 1 or numbers["lhs_batching"] or len(order) != 4 or order[contracted[0]] not in (1, 2):
            return None
        axis = order[contracted[0]]
        kernels = kernels_of(matrix if list(numbers["rhs_contracting"]) == [0] else matrix.T)
        if kernels is None or math.prod(source.shape[1:3]) * len(kernels) > MAX_LINES:
            return None
        if not self._is_batch_first(source):
            return None
        made = resample(self._recorder, source, axis, kernels, layer)
        kept = [place for n, place in enumerate(order) if n != contracted[0]]
        return self._turn(self._recorder.whole(made), [*kept, axis], result_type, layer)

    def _is_batch_first(self, source: Any) -> bool:
        recorder = self._recorder
        made = {operation.result for operation in recorder.operations}
        inputs = {
            name: BatchLayout(0, given.shape[0])
            for name, given in recorder.types.items()
            if name not in made and given.shape
        }
        try:
            layout = follow(recorder.operations, inputs, recorder.types)[source.name]
        except QuantizationError:
            return False
        return layout.axis == 0 and not layout.is_merged


def _is_pool(attributes: Mapping[str, Any], start: Any) -> bool:
    """Return whether a window of channels last is one that the chip computes; the host's has the text of its axes."""
    ends = [attributes[name][place] for name in ("window_dimensions", "window_strides") for place in (0, -1)]
    padding = [*attributes["padding"][0], *attributes["padding"][-1]]
    dilations = {*attributes["base_dilations"], *attributes["window_dilations"]}
    neutral = {"add": 0.0, "maximum": -np.inf}.get(attributes["reducer"])
    known = neutral is not None and isinstance(start, np.ndarray) and bool((start == neutral).all())
    return known and set(ends) == {1} and not any(padding) and dilations == {1}
