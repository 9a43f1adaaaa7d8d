"""From a module to a flat list of operations: everything that does not depend on the inputs is computed now.

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
    """A run of a module in which some values are known.

    Args:
        functions: functions of the module, by name.
        recorder: takes the operations that are left over.
    """

    def __init__(self, functions: Mapping[str, MlirBlock], recorder: Recorder):
        self._functions = functions
        self._recorder = recorder
        self._values: dict[int, Value] = {}
        self._texts: dict[MlirOperation, str] = {}

    def run(self, block: MlirBlock, arguments: Sequence[Value], layer: str = "") -> list[Value]:
        """Return the results of a block."""
        self._values.update(zip(block.arguments, arguments, strict=True))
        for instruction in block.instructions:
            inside = "/".join(part for part in (layer, instruction.layer) if part)
            operands = [self._values[number] for number in instruction.operands]
            results = self._results(instruction, operands, layer, inside)
            self._values.update(zip(instruction.results, results, strict=True))
        return [self._values[number] for number in block.results]

    def _results(self, instruction: MlirOperation, operands: list[Value], outer: str, layer: str) -> list[Value]:
        name = instruction.name.removeprefix("stablehlo.")
        if name in ("func.call", "call", "composite"):
            callee = instruction.attributes["decomposition" if name == "composite" else "callee"]
            return self.run(self._functions[callee], operands, layer)
        if name in ("while", "case", "if"):
            # The places inside of a loop or a branch are written out in full; those inside of a function are not.
            return getattr(self, f"_{name}")(instruction, operands, outer, layer)
        if instruction.name in _IDENTITIES or (
            name == "custom_call" and "Sharding" in instruction.attributes["call_target_name"]
        ):
            return operands
        if name == "constant" and instruction.attributes["value"] is not None:
            return [instruction.attributes["value"]]
        if name in ("dynamic_slice", "dynamic_update_slice"):
            return [self._dynamic(name, instruction, operands, layer)]
        return [self._result(name, instruction, operands, layer, number) for number in range(len(instruction.results))]

    def _result(self, name: str, instruction: MlirOperation, operands: list[Value], layer: str, number: int) -> Value:
        if instruction.types[number].dtype is None:
            raise QuantizationError(
                f"The operation {name!r} of layer {layer!r} makes values of a type that the chip has no use for: cast "
                "what it works with to float32 or int32."
            )
        name, attributes = _simplified(name, instruction)
        if all(isinstance(operand, np.ndarray) for operand in operands):
            known = [operand for operand in operands if isinstance(operand, np.ndarray)]
            return self._known(name, instruction, known, attributes, instruction.types[number], number)
        if not arrays.is_known(name):
            attributes = {**attributes, "text": self._text(instruction)}
        return self._recorder.record(name, operands, attributes, instruction.types[number], layer, number)

    def _known(
        self,
        name: str,
        instruction: MlirOperation,
        operands: list[np.ndarray],
        attributes: dict[str, Any],
        result_type: TensorType,
        number: int,
    ) -> np.ndarray:
        assert result_type.dtype is not None
        if name in elementwise.NAMES:
            return _computed_small(name, operands, attributes, result_type)
        if not arrays.is_known(name):
            attributes = {**attributes, "text": self._text(instruction)}
        return arrays.compute(name, operands, attributes, result_type.shape, result_type.dtype, number)

    def _text(self, instruction: MlirOperation) -> str:
        if instruction not in self._texts:
            self._texts[instruction] = instruction.text()
        return self._texts[instruction]

    def _while(self, instruction: MlirOperation, carried: list[Value], outer: str, layer: str) -> list[Value]:
        condition, body = instruction.blocks
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

    def _case(self, instruction: MlirOperation, operands: list[Value], outer: str, layer: str) -> list[Value]:
        (index,) = operands
        if not isinstance(index, np.ndarray):
            raise QuantizationError(
                f"{_place(layer)} chooses between branches by a number that depends on its inputs, and a program for "
                "the chip has no branches: compute both and choose between the results with jax.numpy.where."
            )
        chosen = int(index)
        if instruction.name == "stablehlo.if":
            chosen = 0 if chosen else 1
        return self.run(instruction.blocks[chosen if 0 <= chosen < len(instruction.blocks) else -1], [], outer)

    _if = _case

    def _dynamic(self, name: str, instruction: MlirOperation, operands: list[Value], layer: str) -> Value:
        taken = 1 if name == "dynamic_slice" else 2
        places = operands[taken:]
        source, result_type = operands[0], instruction.types[0]
        size = result_type.shape if taken == 1 else _shape(operands[1])
        if not all(isinstance(place, np.ndarray) for place in places):
            return self._recorder.record(
                name, operands, {**instruction.attributes, "text": self._text(instruction)}, result_type, layer
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


def _simplified(name: str, instruction: MlirOperation) -> tuple[str, dict[str, Any]]:
    """Return an operation's name and attributes; name the reducer of a reduction by a single operation."""
    attributes = {key: value for key, value in instruction.attributes.items() if key != "precision_config"}
    if name not in ("reduce", "reduce_window") or len(instruction.results) != 1:
        return (name if name != "reduce" else "reduce_many"), attributes
    inside = [inner.name.removeprefix("stablehlo.") for inner in instruction.blocks[0].instructions]
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
