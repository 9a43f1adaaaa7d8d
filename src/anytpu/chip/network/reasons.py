"""Why the chip leaves an operation to the host, in words for its listing."""

from __future__ import annotations

from anytpu.chip.network.operations import Operation
from anytpu.chip.network.trace import OperationTrace

_WHYS = {
    "concatenate": "it puts a tensor beside constants, or along an axis that the chip does not have",
    "custom_call": "it calls code of the host",
    "divide": "it divides one tensor by another",
    "dot_general": "it multiplies two activations, and the chip multiplies activations with weights",
    "dynamic_slice": "what it takes depends on the input",
    "dynamic_update_slice": "where it writes depends on the input",
    "gather": "it looks numbers up by an index",
    "pad": "it pads with something else than zeros around a picture",
    "reduce": "it reduces over channels, and the chip reduces over positions",
    "reduce_many": "it searches for the place of a number",
    "reduce_window": "its windows reach over channels or more than two axes, or are no maximum and no sum",
    "scatter": "it writes numbers to places",
    "sort": "it sorts",
    "transpose": "it moves numbers between channels and positions",
    "broadcast_in_dim": "it repeats numbers",
    "maximum": "it takes the greater of a tensor and a table of numbers",
    "minimum": "it takes the smaller of a tensor and a table of numbers",
    "power": "it raises one tensor to another",
    "select": "it chooses between tensors number by number",
}


def reason_for_host(operation: Operation, trace: OperationTrace) -> str:
    """Return the reason, as the end of a sentence that starts with "because"."""
    whole = not trace.is_float(operation.result) or not all(map(trace.is_float, operation.values))
    if whole and operation.name in ("convolution", "dot_general"):
        return (
            "it multiplies integers, which the chip takes from a quantized ONNX file, or from StableHLO with !quant "
            "types; in JAX, write the model in floats, and calibration quantizes it"
        )
    if whole and operation.name != "gather":
        return "it works on integers or booleans"
    if operation.name in ("add", "subtract", "multiply", "divide") and len(operation.values) == 1:
        return "it combines a tensor with a table of numbers that differs from position to position"
    if operation.name == "convolution":
        return _reason_of_convolution(operation)
    return _WHYS.get(operation.name, f"it has no instruction for {operation.name!r}")


def _reason_of_convolution(operation: Operation) -> str:
    numbers, axes = operation.attributes, operation.attributes["dimension_numbers"]
    if isinstance(operation.operands[1], str):
        return "its kernel is computed from the inputs, and the chip convolves with weights"
    if len(axes["input"]) > 4:
        return "it convolves in three dimensions, and the chip in one or two"
    if set(numbers.get("lhs_dilation", [1])) != {1}:
        return "it is a transposed convolution with gaps in its kernel, steps over its results, or too many positions"
    return "the chip convolves pictures and sequences with the batch as the first axis, and one group of it"
