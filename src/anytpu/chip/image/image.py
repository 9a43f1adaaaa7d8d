"""`Image`: an executable program for the chip: instructions, contents of the Weight Memory, and host steps.

Idea: the compiler makes an image from a quantized network, and the assembler from text. The machine runs an image, the
time model predicts its cycles, and the checker checks it. None of these depends on its origin.

Rule: the host has one buffer of `host_bytes` bytes, which the host and the chip read and write. A tensor has the same
layout there as in the Unified Buffer: plane by plane, with rows in position-major order. The row of position (h, w) and
example n is (h * width + w) * batch + n. Each row is padded to a multiple of 32 bytes.
"""

from __future__ import annotations

import dataclasses
import numbers
from typing import Any

import numpy as np

from anytpu.chip.graph.nodes import HostStep, Quantization, Shape
from anytpu.chip.isa.design import TPU_V1, UNIT_BYTES, Design
from anytpu.chip.isa.instructions import Instruction
from anytpu.errors import ChipError

MAX_HOST_BYTES = 2**40
"""Maximum size of the host's buffer in bytes: instructions have 40 bits for an address in it."""

MAX_BATCH = 2**32 - 1
"""Maximum batch: its register has 32 bits."""

_MAX_INT64 = 2**63 - 1


@dataclasses.dataclass(frozen=True)
class Binding:
    """The location and layout of a tensor in the host's buffer.

    Attributes:
        tensor: name of the tensor.
        shape: shape of one example, `(height, width, channels)`.
        quantization: quantization of the tensor. With 16 bits, each plane is a plane of low bytes, then one of high
            bytes.
        host_address: byte offset of its first plane, a multiple of 32.
        lanes: number of channels of each plane, in order; a row of a plane takes whole units of 32 bytes.

    Raises:
        ChipError: an attribute is invalid.
    """

    tensor: str
    shape: Shape
    quantization: Quantization
    host_address: int
    lanes: tuple[int, ...]

    def __post_init__(self):
        fault = fault_in_binding(self.tensor, self.shape, self.host_address, self.lanes)
        if fault is not None:
            raise ChipError(f"The location of {self.tensor!r} is invalid: {fault[1]}")
        _check_kind(f"The quantization of {self.tensor!r}", self.quantization, Quantization)

    def plane_bytes(self, number: int, batch: int) -> int:
        """Return the size of a plane in bytes; for 16 bits, of its low bytes only."""
        height, width, _ = self.shape
        return height * width * batch * pitch_of(self.lanes[number]) * UNIT_BYTES

    def total_bytes(self, batch: int) -> int:
        """Return the size of the whole tensor in bytes."""
        return sum(self.plane_bytes(n, batch) for n in range(len(self.lanes))) * (self.quantization.bits // 8)


def fault_in_binding(tensor: Any, shape: Any, host_address: Any, lanes: Any) -> tuple[str, str] | None:
    """Return the name of an invalid attribute of a binding and an explanation; None if all are valid.

    Example:
        >>> fault_in_binding("x", (1, 1, 3), 8, (3,))
        ('host_address', 'host_address must be 0 or a positive multiple of 32, not 8.')
    """
    if not isinstance(tensor, str):
        return "tensor", f"a tensor has a name, not {tensor!r}."
    if not isinstance(shape, tuple) or len(shape) != 3 or not all(_is_whole(size, 1) for size in shape):
        return "shape", f"a shape is [height, width, channels] of one example, each above 0, not {_listed(shape)}."
    if not _is_whole(host_address, 0) or host_address % UNIT_BYTES:
        return "host_address", f"host_address must be 0 or a positive multiple of 32, not {host_address!r}."
    if not isinstance(lanes, tuple) or not all(_is_whole(count, 1) for count in lanes) or sum(lanes) != shape[2]:
        expected = f"they must be above 0 and add up to {shape[2]}"
        return "lanes", f"lanes are those of each plane: {expected}, unlike {_listed(lanes)}."
    return None


def pitch_of(lanes: int) -> int:
    """Return the size of a row of `lanes` lanes, in units of 32 bytes.

    Example:
        >>> pitch_of(3), pitch_of(33), pitch_of(256)
        (1, 2, 8)
    """
    return -(-lanes // UNIT_BYTES)


@dataclasses.dataclass(frozen=True, eq=False)
class Service:
    """The work of the host at an `InterruptHost`.

    Attributes:
        step: the host step.
        inputs: location of each input; None if it is the user's own array or another step's result.
        output: location of its result; None if it is not a chip tensor.
    """

    step: HostStep
    inputs: tuple[Binding | None, ...]
    output: Binding | None


@dataclasses.dataclass(frozen=True)
class Tag:
    """A part of a program: the instructions of one node of the network.

    Attributes:
        name: name of the node.
        layer: name of the layer in the user's model; "" if unknown.
        kind: kind of the node ("convolution", "dense", "max pool", "add", "sigmoid", "softmax on the host", ...).
        macs: number of multiply-adds of the model, for the whole batch.
        note: placement of the node, for the listing ("7 of 49 taps a pass", "spilled", "on the host: ...").

    Raises:
        ChipError: an attribute has another type, or `macs` is out of range.
    """

    name: str
    layer: str = ""
    kind: str = ""
    macs: int = 0
    note: str = ""

    def __post_init__(self):
        for text in ("name", "layer", "kind", "note"):
            _check_kind(f"The {text} of a part of a program", getattr(self, text), str)
        _check_whole(f"The multiply-adds of part {self.name!r}", self.macs, 0, _MAX_INT64)


@dataclasses.dataclass(frozen=True)
class Resident:
    """An allocation of the Unified Buffer, with its live range.

    Attributes:
        tensor: name of the tensor.
        address: start, in units of 32 bytes.
        units: size, in units of 32 bytes.
        first, last: indices of the first and the last instruction that use it.

    Raises:
        ChipError: an attribute is invalid.
    """

    tensor: str
    address: int
    units: int
    first: int
    last: int

    def __post_init__(self):
        _check_kind("The tensor of a stretch of the Unified Buffer", self.tensor, str)
        for number in ("address", "units", "first", "last"):
            _check_whole(f"{number} of {self.tensor!r} in the Unified Buffer", getattr(self, number), 0, _MAX_INT64)


@dataclasses.dataclass(frozen=True, eq=False)
class Image:
    """A program for the chip, for batches of one size.

    Attributes:
        name: name of the program.
        instructions: the instructions; the last is a `Halt`.
        weights: contents of the Weight Memory from block 0 on, uint8 `(bytes,)`.
        batch: number of examples per batch.
        host_bytes: size of the host's buffer in bytes.
        inputs, outputs: locations of the chip's inputs and outputs in the host's buffer.
        services: work of the host at each interrupt, by the interrupt's number.
        tags: the parts that `DebugTag` marks.
        residents: allocations of the Unified Buffer.
        design: the chip that it was compiled for.

    Raises:
        ChipError: an attribute is invalid. `checking.check` checks the instructions.
    """

    name: str
    instructions: tuple[Instruction, ...]
    weights: np.ndarray
    batch: int = 1
    host_bytes: int = 0
    inputs: tuple[Binding, ...] = ()
    outputs: tuple[Binding, ...] = ()
    services: tuple[Service, ...] = ()
    tags: tuple[Tag, ...] = ()
    residents: tuple[Resident, ...] = ()
    design: Design = TPU_V1

    def __post_init__(self):
        _check_kind("The name of a program", self.name, str)
        _check_whole(f"The batch of {self.name!r}", self.batch, 1, MAX_BATCH)
        _check_whole(f"The size of the host's buffer of {self.name!r}", self.host_bytes, 0, MAX_HOST_BYTES)
        _check_kind(f"The weights of {self.name!r}", self.weights, np.ndarray)
        if self.weights.dtype != np.uint8 or self.weights.ndim != 1:
            actual = f"{self.weights.dtype} {self.weights.shape}"
            raise ChipError(f"The weights of {self.name!r} must be bytes, a vector of uint8, not {actual}.")
        _check_kind(f"The chip of {self.name!r}", self.design, Design)


def _check_kind(what: str, value: Any, kind: type) -> None:
    if not isinstance(value, kind):
        raise ChipError(f"{what} must be a {kind.__name__}, not {value!r}.")


def _check_whole(what: str, value: Any, minimum: int, maximum: int) -> None:
    if not _is_whole(value, minimum) or value > maximum:
        raise ChipError(f"{what} must be an integer from {minimum} to {maximum}, not {value!r}.")


def _is_whole(value: Any, minimum: int) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= minimum


def _listed(value: Any) -> str:
    return repr(list(value) if isinstance(value, tuple) else value)
