"""`write_operation`: a host operation as operators of ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.operations import Operation
from anytpu.chip.onnx.batched_value import BatchedValue, UntranslatableError
from anytpu.chip.onnx.elementwise import write_elements
from anytpu.chip.onnx.graph import OnnxGraph
from anytpu.chip.onnx.structure import write_structure


def write_operation(
    graph: OnnxGraph, operation: Operation, operands: Sequence[BatchedValue | np.ndarray], layout: BatchLayout
) -> str:
    """Write a host operation.

    Args:
        graph: the graph to add it to.
        operation: the operation.
        operands: its operands; arrays are constants.
        layout: position of the batch in its result.

    Returns:
        The name of its value.

    Raises:
        UntranslatableError: the operation has no ONNX equivalent.
    """
    value = write_elements(graph, operation, operands, layout) or write_structure(graph, operation, operands, layout)
    if value is None:
        raise UntranslatableError("for which there is no operator here")
    return value
