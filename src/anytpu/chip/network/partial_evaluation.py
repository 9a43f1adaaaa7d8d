"""`PartialEvaluator`: a module as a flat list of operations; values that do not depend on the inputs are folded.

Idea: weights, counters and shapes are known while a model is compiled for the chip. So the module is run once with them
(partial evaluation), and a list of the operations that depend on the user's inputs is left over. Calls are inlined and
branches are decided. Loops of known count (recurrent layers, `jax.lax.scan`) are unrolled.

Rule: a value is an array, if it is known, or a `Symbol`. An array that is filled iteration by iteration (the outputs of
a scan) is a `PiecewiseArray` until the whole of it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anytpu.chip.network import arrays, elementwise
from anytpu.chip.network.parsing import MlirBlock, MlirOperation, TensorType
from anytpu.chip.network.recorder import Recorder, Value
from anytpu.errors import QuantizationError

MAX_ITERATIONS = 10_000
"""Maximum number of iterations of an unrolled loop; more are a mistake."""

_IDENTITIES = {"sdy.sharding_constraint", "stablehlo.optimization_barrier", "sdy.propagation_barrier"}


class PartialEvaluator:
    """Evaluates a module of which some values are known.

    Args:
        functions: functions of the module, by name.
        recorder: records the operations that depend on the inputs.
    """

    def __init__(self, functions: Mapping[str, MlirBlock], recorder: Recorder):
        self._functions = functions
        self._recorder = recorder
        self._values: dict[int, Value] = {}
        self._texts: dict[MlirOperation, str] = {}

    def run(self, block: MlirBlock, arguments: Sequence[Value], layer: str = "") -> list[Value]:
        """Return the results of a block."""
        self._values.update(zip(block.arguments, arguments, strict=True))
        for operation in block.operations:
            inside = "/".join(part for part in (layer, operation.layer) if part)
            operands = [self._values[number] for number in operation.operands]
            results = self._results(operation, operands, layer, inside)
            self._values.update(zip(operation.results, results, strict=True))
        return [self._values[number] for number in block.results]

    def _results(self, operation: MlirOperation, operands: list[Value], outer: str, layer: str) -> list[Value]:
        name = operation.name.removeprefix("stablehlo.")
        if name in ("func.call", "call", "composite"):
            callee = operation.attributes["decomposition" if name == "composite" else "callee"]
            return self.run(self._functions[callee], operands, layer)
        if name in ("while", "case", "if"):
            # Locations within a loop or a branch have the full path of layers; those within a function do not.
            return getattr(self, f"_{name}")(operation, operands, outer, layer)
        if operation.name in _IDENTITIES or (
            name == "custom_call" and "Sharding" in operation.attributes["call_target_name"]
        ):
            return operands
        if name == "constant" and operation.attributes["value"] is not None:
            return [operation.attributes["value"]]
        if name in ("dynamic_slice", "dynamic_update_slice"):
            return [self._dynamic(name, operation, operands, layer)]
        return [self._result(name, operation, operands, layer, index) for index in range(len(operation.results))]

    def _result(self, name: str, operation: MlirOperation, operands: list[Value], layer: str, number: int) -> Value:
        if operation.types[number].dtype is None:
            raise QuantizationError(
                f"The operation {name!r} of layer {layer!r} makes values of a type that the chip has no use for: cast "
                "what it works with to float32 or int32."
            )
        name, attributes = _simplified(name, operation)
        if all(isinstance(operand, np.ndarray) for operand in operands):
            known = [operand for operand in operands if isinstance(operand, np.ndarray)]
            return self._known(name, operation, known, attributes, operation.types[number], number)
        if not arrays.is_known(name):
            attributes = {**attributes, "text": self._text(operation)}
        return self._recorder.record(name, operands, attributes, operation.types[number], layer, number)

    def _known(
        self,
        name: str,
        operation: MlirOperation,
        operands: list[np.ndarray],
        attributes: dict[str, Any],
        result_type: TensorType,
        number: int,
    ) -> np.ndarray:
        assert result_type.dtype is not None
        if name in elementwise.NAMES:
            return _computed_small(name, operands, attributes, result_type)
        if not arrays.is_known(name):
            attributes = {**attributes, "text": self._text(operation)}
        return arrays.compute(name, operands, attributes, result_type.shape, result_type.dtype, number)

    def _text(self, operation: MlirOperation) -> str:
        if operation not in self._texts:
            self._texts[operation] = operation.text()
        return self._texts[operation]

    def _while(self, operation: MlirOperation, carried: list[Value], outer: str, layer: str) -> list[Value]:
        condition, body = operation.blocks
        for _ in range(MAX_ITERATIONS):
            (goes_on,) = self.run(condition, carried, outer)
            if not isinstance(goes_on, np.ndarray):
                raise QuantizationError(
                    f"{_place(layer)} has a loop whose number of rounds depends on its inputs, and a program for the "
                    "chip has all of its steps written out. Give it a count that is known beforehand: jax.lax.scan, "
                    "or jax.lax.fori_loop with numbers for bounds, over the longest input."
                )
            if not goes_on:
                return carried
            carried = self.run(body, carried, outer)
        raise QuantizationError(
            f"{_place(layer)} has a loop of more than {MAX_ITERATIONS:,} rounds, and each would be written out. Put "
            "the loop outside of the model."
        )

    def _case(self, operation: MlirOperation, operands: list[Value], outer: str, layer: str) -> list[Value]:
        (index,) = operands
        if not isinstance(index, np.ndarray):
            raise QuantizationError(
                f"{_place(layer)} chooses between branches by a number that depends on its inputs, and a program for "
                "the chip has no branches: compute both and choose between the results with jax.numpy.where."
            )
        chosen = int(index)
        if operation.name == "stablehlo.if":
            chosen = 0 if chosen else 1
        return self.run(operation.blocks[chosen if 0 <= chosen < len(operation.blocks) else -1], [], outer)

    _if = _case

    def _dynamic(self, name: str, operation: MlirOperation, operands: list[Value], layer: str) -> Value:
        taken = 1 if name == "dynamic_slice" else 2
        places = operands[taken:]
        source, result_type = operands[0], operation.types[0]
        size = result_type.shape if taken == 1 else _shape(operands[1])
        if not all(isinstance(place, np.ndarray) for place in places):
            return self._recorder.record(
                name, operands, {**operation.attributes, "text": self._text(operation)}, result_type, layer
            )
        starts = [
            min(max(int(place), 0), whole - part)  # pyright: ignore[reportArgumentType]
            for place, whole, part in zip(places, _shape(source), size, strict=True)
        ]
        if taken == 1:
            return self._recorder.cut(source, starts, size, layer)
        return self._recorder.put(source, operands[1], starts, layer)


def _shape(value: Value) -> tuple[int, ...]:
    return value.shape


def _place(layer: str) -> str:
    return f"The layer {layer!r}" if layer else "The model"


def _simplified(name: str, operation: MlirOperation) -> tuple[str, dict[str, Any]]:
    """Return an operation's name and attributes; name the reducer of a reduction by a single operation."""
    attributes = {key: value for key, value in operation.attributes.items() if key != "precision_config"}
    if name not in ("reduce", "reduce_window") or len(operation.results) != 1:
        return (name if name != "reduce" else "reduce_many"), attributes
    inside = [inner.name.removeprefix("stablehlo.") for inner in operation.blocks[0].operations]
    if len(inside) == 1 and inside[0] in arrays.REDUCERS:
        rank = len(attributes.get("window_dimensions", ()))
        unit = [1] * rank
        filled = {"window_strides": unit, "base_dilations": unit, "window_dilations": unit, "padding": [[0, 0]] * rank}
        return name, {**(filled if name == "reduce_window" else {}), **attributes, "reducer": inside[0]}
    return f"{name}_by_function", attributes


def _computed_small(
    name: str, operands: list[np.ndarray], attributes: Mapping[str, Any], result_type: TensorType
) -> np.ndarray:
    """Compute once along axes that all operands are broadcast along, and broadcast the result."""
    assert result_type.dtype is not None
    if any(operand.ndim not in (0, len(result_type.shape)) for operand in operands):
        return elementwise.compute(name, operands, attributes, result_type.shape, result_type.dtype)
    same = [
        all(operand.ndim == 0 or operand.strides[axis] == 0 for operand in operands)
        for axis in range(len(result_type.shape))
    ]
    parts = tuple(slice(0, 1) if stretched else slice(None) for stretched in same)
    small = [operand[parts] if operand.ndim else operand for operand in operands]
    shape = tuple(min(size, 1) if stretched else size for size, stretched in zip(result_type.shape, same, strict=True))
    return np.broadcast_to(elementwise.compute(name, small, attributes, shape, result_type.dtype), result_type.shape)
