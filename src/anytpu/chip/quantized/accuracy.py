"""`accuracies`: the accuracy of a classifier on labelled examples, before and after quantization."""

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
    """Return the accuracy of the float and of the quantized network, each from 0 to 1.

    An example is correct if the first output has its maximum at the label.

    Args:
        network: the float network.
        quantized: the result of `quantize` for it.
        inputs: an array for each input, as `quantize` takes them.
        labels: class indices, integers `(examples,)`.

    Raises:
        SettingError: the number of labels is not the number of examples.
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
