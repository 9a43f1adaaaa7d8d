"""Check the user's arrays, and convert them to and from the chip's tensors.

Rule: inputs are checked before anything runs. A NaN is an error, because no integer represents it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anytpu.chip.graph.nodes import Port, Quantization, Shape
from anytpu.errors import ChipError


def arrays_of(name: str, ports: Sequence[Port], x: Any) -> list[np.ndarray]:
    """Return the inputs as a list, from an array, a list, a tuple, or a dictionary with the inputs' names.

    Raises:
        ChipError: a dictionary has other keys than the inputs' names.
    """
    if isinstance(x, Mapping):
        names = [port.tensor for port in ports]
        if set(x) != set(names):
            wanted, actual = ", ".join(map(repr, names)), ", ".join(map(repr, x)) or "nothing"
            raise ChipError(f"the inputs of {name} are {wanted}, and those given are {actual}.")
        return [np.asarray(x[name]) for name in names]
    return [np.asarray(array) for array in x] if isinstance(x, list | tuple) else [np.asarray(x)]


def check_arrays(name: str, ports: Sequence[Port], arrays: Sequence[np.ndarray]) -> int:
    """Check the inputs, and return the number of rows.

    Raises:
        ChipError: the number of inputs, a shape or a dtype is wrong. Also: an integer is out of range, the inputs
            differ in the number of rows, or there is a NaN.
    """
    if len(arrays) != len(ports):
        raise ChipError(f"{name} takes {_inputs(len(ports))}, not {len(arrays)}: {_listed(ports)}.")
    for index, (port, array) in enumerate(zip(ports, arrays, strict=True)):
        which = f"input {index} of {name}" if len(ports) > 1 else f"the input of {name}"
        if array.ndim == 0 or array.shape[1:] != port.shape:
            raise ChipError(f"{which} must have the shape {_shape(port)}, not {array.shape}.")
        if array.dtype.kind not in ("iub" if _is_whole(port) else "iubf"):
            kinds = "integers" if _is_whole(port) else "numbers"
            raise ChipError(f"{which} must hold {kinds} ({port.dtype}), not {array.dtype}.")
        if _is_whole(port) and array.size and not np.can_cast(array.dtype, port.dtype):
            _check_range(which, port, array)
        if array.dtype.kind == "f" and (bad := np.isnan(array).any(axis=tuple(range(1, array.ndim)))).any():
            raise ChipError(
                f"{which} has a NaN in row {int(np.argmax(bad))}, which no integer represents; "
                "np.nan_to_num(x) puts 0 in its place."
            )
    rows = {len(array) for array in arrays}
    if len(rows) > 1:
        counts = ", ".join(str(len(array)) for array in arrays)
        raise ChipError(f"the inputs of {name} must have as many rows each, not {counts}.")
    return rows.pop()


def _check_range(which: str, port: Port, array: np.ndarray) -> None:
    low, high = (0, 1) if port.dtype == "bool" else (np.iinfo(port.dtype).min, np.iinfo(port.dtype).max)
    minimum, maximum = int(array.min()), int(array.max())
    if minimum < low or maximum > high:
        raise ChipError(
            f"{which} must hold numbers from {low} to {high} ({port.dtype}), not from {minimum} to {maximum}."
        )


def tensor_of(
    port: Port, array: np.ndarray, shapes: Mapping[str, Shape], quantizations: Mapping[str, Quantization]
) -> np.ndarray:
    """Return an input as `(rows, height, width, channels)`, quantized if it is a chip tensor."""
    canonical = array.reshape(len(array), *shapes[port.tensor])
    quantization = quantizations.get(port.tensor)
    return canonical.astype(port.dtype) if quantization is None else quantization.quantize(canonical)


def array_of(port: Port, tensor: np.ndarray, quantizations: Mapping[str, Quantization]) -> np.ndarray:
    """Return a tensor in the user's shape, `(rows, ...)`, dequantized if it is a chip tensor."""
    quantization = quantizations.get(port.tensor)
    real = tensor if quantization is None else quantization.dequantize(tensor)
    return real.reshape(len(tensor), *port.shape)


def _is_whole(port: Port) -> bool:
    return np.dtype(port.dtype).kind in "iub"


def _shape(port: Port) -> str:
    return f"({', '.join(['rows', *map(str, port.shape)])})"


def _inputs(count: int) -> str:
    return "one input" if count == 1 else f"{count} inputs"


def _listed(ports: Sequence[Port]) -> str:
    return ", ".join(f"{port.tensor!r} {_shape(port)} {port.dtype}" for port in ports)
