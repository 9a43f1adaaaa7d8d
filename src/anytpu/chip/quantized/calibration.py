"""Calibration: check the examples, and collect a histogram of each tensor over them.

Idea: static quantization fixes every scale before the first real input, so the examples must be representative. `check`
reports unusable examples before any computation.

Rule: about 100 examples are enough. A single example is valid; examples that are all identical are an error. Tensors
are computed a few rows at a time and never kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from anytpu.chip.graph.nodes import Network, Port
from anytpu.chip.quantized import reference
from anytpu.chip.quantized.ranges import Histogram, Method
from anytpu.errors import CalibrationError, QuantizationError
from anytpu.report.wording import plural

CHUNK_BYTES = 256 * 2**20
"""Approximate maximum size of the tensors of one chunk of examples, in bytes."""

_ADVICE = "give about 100 examples of what the model will see, such as calibration=x_train[:256]"


def check(network: Network, calibration: Sequence[np.ndarray] | np.ndarray) -> list[np.ndarray]:
    """Return the examples as an array for each input, `(examples, *shape)` of its dtype.

    Args:
        network: the float network, for the shapes and dtypes of its inputs.
        calibration: an array for each input; for a network with one input also the array itself.

    Raises:
        CalibrationError: there are no examples, or they have the wrong count, shape or dtype. Also: they are not
            finite, or all are identical.
    """
    arrays = list(calibration) if isinstance(calibration, list | tuple) else [calibration]
    if len(arrays) != len(network.inputs):
        wanted = ", ".join(f"{port.tensor} {('examples', *port.shape)}".replace("'", "") for port in network.inputs)
        raise CalibrationError(
            f"calibration has {plural(len(arrays), 'array')} and the model {plural(len(network.inputs), 'input')}: "
            f"give a list of one array for each of {wanted}"
        )
    checked = [_check_array(port, np.asarray(array)) for port, array in zip(network.inputs, arrays, strict=True)]
    counts = [len(array) for array in checked]
    if len(set(counts)) > 1:
        names = ", ".join(f"{port.tensor} {count}" for port, count in zip(network.inputs, counts, strict=True))
        raise CalibrationError(
            f"the arrays of calibration have different numbers of examples: {names}; give as many of each"
        )
    if not counts[0]:
        raise CalibrationError(
            f"calibration has no examples, and the ranges of the integers are taken from it: {_ADVICE}"
        )
    _check_variety(checked)
    return checked


def observe(
    network: Network, arrays: Sequence[np.ndarray], tensors: Iterable[str], method: Method
) -> Mapping[str, Histogram]:
    """Compute a network for some examples, and return a histogram of each of some tensors.

    Args:
        network: the float network.
        arrays: the examples, as `check` returns them.
        tensors: names of the tensors to observe.
        method: "minmax" records only minimum and maximum; the other methods also count values.

    Raises:
        QuantizationError: a tensor is not finite for some example.
    """
    histograms = {name: Histogram() for name in tensors}
    for values in evaluate_chunks(network, arrays):
        for name, histogram in histograms.items():
            numbers = np.asarray(values[name], np.float32)
            if not np.isfinite(numbers).all():
                raise QuantizationError(_not_finite(network, name, numbers))
            histogram.add(numbers.ravel(), counted=method != "minmax")
    return histograms


def evaluate_chunks(network: Network, arrays: Sequence[np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """Compute a network on chunks of examples, and yield all tensors of each chunk, by name."""
    example_bytes = 4 * sum(int(np.prod(shape)) for shape in network.shapes.values())
    count = len(arrays[0])
    rows = min(int(np.clip(CHUNK_BYTES // max(example_bytes, 1), 1, 256)), count)
    for start in range(0, count, rows):
        # All chunks have equal size, because JAX compiles each size anew; the last chunk is padded with examples.
        filled = [array[np.arange(start, start + rows) % count] for array in arrays]
        yield {name: values[: count - start] for name, values in reference.compute(network, filled).items()}


def _check_array(port: Port, array: np.ndarray) -> np.ndarray:
    named = f"calibration of input {port.tensor!r}"
    if array.dtype.kind not in "fiub":
        raise CalibrationError(f"{named} is of dtype {array.dtype}, not of numbers: give an array of {port.dtype}")
    if array.shape[1:] != tuple(port.shape) or array.ndim != len(port.shape) + 1:
        wanted = str(("examples", *port.shape)).replace("'", "")
        raise CalibrationError(f"{named} has the shape {array.shape}, and the model takes {wanted}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        place = tuple(int(index) for index in np.argwhere(~np.isfinite(array))[0])
        raise CalibrationError(
            f"{named} is {array[place]} in example {place[0]}, at {place[1:]}: leave out or repair such examples"
        )
    return array.astype(port.dtype)


def _check_variety(arrays: Sequence[np.ndarray]) -> None:
    if any((array != array[:1]).any() for array in arrays):
        return
    if len(arrays[0]) > 1:
        raise CalibrationError(
            f"the {len(arrays[0])} examples of calibration are all the same, so that the ranges taken from them would "
            f"fit no other: {_ADVICE}"
        )
    if all((array == array.flat[0]).all() for array in arrays if array.size):
        raise CalibrationError(
            f"the only example of calibration is {arrays[0].flat[0]} everywhere, so that the ranges taken from it "
            f"would fit no other: {_ADVICE}"
        )


def _not_finite(network: Network, name: str, numbers: np.ndarray) -> str:
    makers = {node.output: node for node in network.nodes}
    place = tuple(int(index) for index in np.argwhere(~np.isfinite(numbers))[0])
    node = makers[name]
    return (
        f"layer {node.layer or node.name!r} gives {numbers[place]} for an example of calibration, which no integer "
        f"represents: look for weights that are not finite, a division by 0, or a mask of infinities"
    )
