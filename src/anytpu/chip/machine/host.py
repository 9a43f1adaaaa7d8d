"""The host: tensors in its buffer, and host steps at interrupts."""

from __future__ import annotations

import numpy as np

from anytpu.chip.image.image import Binding, Service, pitch_of
from anytpu.chip.isa.design import UNIT_BYTES
from anytpu.chip.network import operations
from anytpu.chip.network.finiteness import check_finite
from anytpu.errors import ChipError


def pack(host: np.ndarray, binding: Binding, integers: np.ndarray) -> None:
    """Write a tensor into the host's buffer.

    Args:
        host: the host's buffer, uint8 `(bytes,)`; written.
        binding: location and layout of the tensor.
        integers: the tensor, `(batch, height, width, channels)`.

    Raises:
        ChipError: the tensor has another shape or dtype, or integers that the binding's bits cannot hold.
    """
    batch = len(integers)
    _check_integers(binding, integers)
    rows = np.ascontiguousarray(integers.transpose(1, 2, 0, 3)).reshape(-1, integers.shape[3])
    address, channel = binding.host_address, 0
    for index, lanes in enumerate(binding.lanes):
        size_bytes = binding.plane_bytes(index, batch)
        part = rows[:, channel : channel + lanes].astype(binding.quantization.dtype)
        for shift in range(0, binding.quantization.bits, 8):
            plane = host[address : address + size_bytes].reshape(len(rows), pitch_of(lanes) * UNIT_BYTES)
            plane[:, :lanes] = (part >> shift).astype(np.uint8)
            plane[:, lanes:] = 0
            address += size_bytes
        channel += lanes


def unpack(host: np.ndarray, binding: Binding, batch: int) -> np.ndarray:
    """Read a tensor from the host's buffer, int8 or int16 `(batch, height, width, channels)`."""
    height, width, channels = binding.shape
    rows = np.empty((height * width * batch, channels), binding.quantization.dtype)
    address, channel = binding.host_address, 0
    for index, lanes in enumerate(binding.lanes):
        size_bytes = binding.plane_bytes(index, batch)
        shape = len(rows), pitch_of(lanes) * UNIT_BYTES
        part = rows[:, channel : channel + lanes]
        low = host[address : address + size_bytes].reshape(shape)[:, :lanes]
        if binding.quantization.bits == 8:
            part[...] = low.view(np.int8)
        else:
            address += size_bytes
            high = host[address : address + size_bytes].reshape(shape)[:, :lanes]
            part[...] = high.view(np.int8).astype(np.int16) * 256 + low
        address += size_bytes
        channel += lanes
    return np.ascontiguousarray(rows.reshape(height, width, batch, channels).transpose(2, 0, 1, 3))


def serve(host: np.ndarray, service: Service, batch: int, values: dict[str, np.ndarray]) -> None:
    """Execute a host step: read its inputs, compute, and write the result.

    Args:
        host: the host's buffer; written if the result is a chip tensor.
        service: the step, and the locations of its tensors.
        batch: number of examples.
        values: maps names to tensors that are not on the chip. The step's inputs and its result are added.

    Raises:
        ChipError: an input has not been computed.
        HostStepError: the result contains a NaN or an infinity, for example after a division by 0.
    """
    node = service.step
    # 1. Inputs: chip tensors are unpacked and dequantized, other values are used as they are.
    inputs = []
    for name, binding in zip(node.inputs, service.inputs, strict=True):
        if binding is None and name not in values:
            raise ChipError(f"The host's step {node.name!r} needs {name!r}, which no step before it has made.")
        if binding is None:
            inputs.append(values[name])
        else:
            values[name] = unpack(host, binding, batch)
            inputs.append(binding.quantization.dequantize(values[name]))
    # 2. The operations, in floating point; a NaN is refused before it can be quantized.
    result = operations.compute(node, inputs)
    check_finite(node, inputs, result, held=service.output is not None)
    # 3. The result: a chip tensor is quantized and packed.
    if service.output is not None:
        result = service.output.quantization.quantize(result)
        pack(host, service.output, result)
    values[node.output] = result


def _check_integers(binding: Binding, integers: np.ndarray) -> None:
    tensor, q = binding.tensor, binding.quantization
    shape = integers.shape[:1] + tuple(binding.shape)
    if integers.shape != shape:
        raise ChipError(f"{tensor!r} must be of shape {shape}, not {integers.shape}.")
    if integers.dtype == q.dtype:
        return
    if integers.dtype.kind not in "iu":
        raise ChipError(f"{tensor!r} must be of {q.bits}-bit integers, not of {integers.dtype}: quantize it first.")
    if integers.size and not q.low <= integers.min() <= integers.max() <= q.high:
        actual = f"has some from {integers.min()} to {integers.max()}"
        raise ChipError(f"{tensor!r} must be of integers from {q.low} to {q.high}, and {actual}.")
