"""How many of some labelled examples a model gets right, before quantization and after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anytpu.chip.network.nodes import Network
from anytpu.chip.quantized import reference
from anytpu.chip.quantized.calibration import check, evaluate_chunks
from anytpu.chip.quantized.nodes import QuantizedNetwork
from anytpu.errors import SettingError


def accuracies(
    network: Network, quantized: QuantizedNetwork, inputs: Sequence[np.ndarray] | np.ndarray, labels: np.ndarray
) -> tuple[float, float]:
    """Return the shares of examples for which the first output is greatest at the label: in float, and quantized.

    Args:
        network: in floating point.
        quantized: what `quantize` made of it.
        inputs: an array for each input, as `quantize` takes them.
        labels: whole numbers, `(examples,)`.

    Raises:
        SettingError: there are more or fewer labels than examples.
    """
    arrays, labels = check(network, inputs), np.asarray(labels)
    if labels.shape != (len(arrays[0]),):
        raise SettingError(
            f"labels have the shape {labels.shape}, not {(len(arrays[0]),)}: give the number of the class of each "
            f"example"
        )
    port, right, done = network.outputs[0], np.zeros(2), 0
    for values in evaluate_chunks(network, arrays):
        rows = slice(done, done + len(values[port.tensor]))
        tensors = reference.compute(quantized, [array[rows] for array in arrays])
        for which, scores in enumerate((values[port.tensor], reference.outputs(quantized, tensors)[0])):
            right[which] += (scores.reshape(len(scores), -1).argmax(1) == labels[rows]).sum()
        done = rows.stop
    return float(right[0] / len(labels)), float(right[1] / len(labels))
