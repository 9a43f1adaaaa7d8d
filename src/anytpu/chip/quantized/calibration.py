"""The examples that the ranges are taken from: whether they can be used, and what the network's tensors hold for them.

Idea: static quantization fixes every scale before the first real example is seen, so all depends on some examples that
look like the real ones. What is wrong with them is said here, before anything is computed.

Rule: a hundred examples are plenty, one is accepted; examples that are all the same are not. Tensors are observed some
rows at a time and never kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from anytpu.chip.network.nodes import Network, Port
from anytpu.chip.quantized.ranges import Histogram, Method
from anytpu.errors import CalibrationError, QuantizationError

CHUNK_BYTES = 256 * 2**20
"""About how much of the tensors of some examples is held at a time."""

_ADVICE = "give about 100 examples of what the model will see, such as calibration=x_train[:256]"


def check(network: Network, calibration: Sequence[np.ndarray] | np.ndarray | None) -> list[np.ndarray]:
    """Return the examples as an array for each input, `(examples, *shape)` of its dtype.

    Args:
        network: says what its inputs are.
        calibration: an array for each input; of a network with one input also that array itself.

    Raises:
        CalibrationError: there are none, they are of the wrong number, shape or type, not finite, or all the same.
    """
    if calibration is None:
        raise CalibrationError(f"calibration is None, and the ranges of the integers are taken from it: {_ADVICE}")
    arrays = list(calibration) if isinstance(calibration, list | tuple) else [calibration]
    if len(arrays) != len(network.inputs):
        wanted = ", ".join(f"{port.tensor} {('examples', *port.shape)}".replace("'", "") for port in network.inputs)
        raise CalibrationError(
            f"calibration has {_count(len(arrays), 'array')} and the model {_count(len(network.inputs), 'input')}: "
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
    """Compute a network for some examples and return how the numbers of some of its tensors are spread.

    Args:
        network: what to compute.
        arrays: the examples, as `check` returns them.
        tensors: names of those that are looked at.
        method: "minmax" needs the least and the greatest number only.

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
    """Compute a network some examples at a time, and yield each time all of its tensors."""
    from anytpu.chip.network import evaluate  # loads JAX

    example_bytes = 4 * sum(int(np.prod(shape)) for shape in network.shapes.values())
    count = len(arrays[0])
    rows = min(int(np.clip(CHUNK_BYTES // max(example_bytes, 1), 1, 256)), count)
    for start in range(0, count, rows):
        # Always as many rows, since each number of them is compiled anew; the last piece is filled up.
        filled = [array[np.arange(start, start + rows) % count] for array in arrays]
        yield {name: values[: count - start] for name, values in evaluate(network, filled).items()}


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
        f"stands for: look for weights that are not finite, a division by 0, or a mask of infinities"
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
