"""`write_operation`: a host operation as operators of ONNX."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anytpu.chip.network.lay import Lay
from anytpu.chip.network.operations import Operation
from anytpu.chip.onnx.elementwise import write_elements
from anytpu.chip.onnx.graph import Graph
from anytpu.chip.onnx.placed import Placed, Untranslatable
from anytpu.chip.onnx.structure import write_structure
from anytpu.chip.onnx.windows import write_convolution, write_pad

_WINDOWED = {"convolution": write_convolution, "pad": write_pad}


def write_operation(graph: Graph, operation: Operation, operands: Sequence[Placed | np.ndarray], lay: Lay) -> str:
    """Write a host operation.

    Args:
        graph: the graph to add it to.
        operation: the operation.
        operands: its operands; arrays are constants.
        lay: position of the batch in its result.

    Returns:
        The name of its value.

    Raises:
        Untranslatable: the operation has no ONNX equivalent.
    """
    if operation.name in _WINDOWED:
        return _WINDOWED[operation.name](graph, operation, operands)
    value = write_elements(graph, operation, operands, lay) or write_structure(graph, operation, operands, lay)
    if value is None:
        raise Untranslatable("for which there is no operator here")
    return value
