"""`Image`: all that a chip needs to run: instructions, what lies in the Weight Memory, and what the host does.

Idea: the compiler makes an image of a quantized network, the assembler one of text; the machine runs it, the time model
counts its cycles, the checker reads it. None of them knows where it came from.

Rule: the host has one buffer of `host_bytes` bytes that both sides read and write. A tensor lies there as it does in
the Unified Buffer: plane by plane, rows in position-major order (row (h * width + w) * batch + n), each row padded to
whole units of 32 bytes.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from anytpu.chip.design import TPU_V1, UNIT_BYTES, Design
from anytpu.chip.isa.instructions import Instruction
from anytpu.chip.network.nodes import Shape
from anytpu.chip.quantized.nodes import QHostStep, Quantization


@dataclasses.dataclass(frozen=True)
class Binding:
    """Where a tensor lies in the host's buffer.

    Attributes:
        tensor: its name.
        shape: `(height, width, channels)` of one example.
        quantization: what its integers stand for. Of 16 bits, each plane is one of low bytes, then one of high bytes.
        host_address: the byte where its first plane starts; a multiple of 32.
        lanes: the channels of each plane, one after another; each row of a plane takes whole units of 32 bytes.
    """

    tensor: str
    shape: Shape
    quantization: Quantization
    host_address: int
    lanes: tuple[int, ...]

    def plane_bytes(self, number: int, batch: int) -> int:
        """Return the bytes of a plane (of its low bytes, for 16 bits)."""
        height, width, _ = self.shape
        return height * width * batch * pitch_of(self.lanes[number]) * UNIT_BYTES

    def total_bytes(self, batch: int) -> int:
        """Return the bytes of the whole tensor."""
        return sum(self.plane_bytes(n, batch) for n in range(len(self.lanes))) * (self.quantization.bits // 8)


def pitch_of(lanes: int) -> int:
    """Return the units of 32 bytes that a row of so many lanes takes.

    Example:
        >>> pitch_of(3), pitch_of(33), pitch_of(256)
        (1, 2, 8)
    """
    return -(-lanes // UNIT_BYTES)


@dataclasses.dataclass(frozen=True, eq=False)
class Service:
    """What the host does at an `InterruptHost`.

    Attributes:
        step: the step.
        inputs: where its inputs lie; None for one that is the user's own array or another step's result.
        output: where its result goes; None where it is no tensor of the chip.
    """

    step: QHostStep
    inputs: tuple[Binding | None, ...]
    output: Binding | None


@dataclasses.dataclass(frozen=True)
class Tag:
    """A part of a program: what was made of one node of the network.

    Attributes:
        name: of the node.
        layer: of the user's model; "" where none is known.
        kind: what it is ("convolution", "dense", "max pool", "add", "sigmoid", "softmax on the host", ...).
        macs: multiply-adds that the model asks for, of the whole batch.
        note: how it was placed, for the listing ("7 of 49 taps a pass", "spilled", "on the host: ...").
    """

    name: str
    layer: str = ""
    kind: str = ""
    macs: int = 0
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Resident:
    """A stretch of the Unified Buffer that a tensor holds.

    Attributes:
        tensor: its name.
        address, units: where, in units of 32 bytes.
        first, last: the numbers of the first and the last instruction that use it.
    """

    tensor: str
    address: int
    units: int
    first: int
    last: int


@dataclasses.dataclass(frozen=True, eq=False)
class Image:
    """A program for the chip, for batches of one size.

    Attributes:
        name: what people call it.
        instructions: the last is a `Halt`.
        weights: uint8, the bytes of the Weight Memory from block 0 on.
        batch: examples that go through at a time.
        host_bytes: size of the host's buffer.
        inputs, outputs: the chip's own: where the integers lie.
        services: what the host does at each interrupt, by its number.
        tags: the parts that `DebugTag` marks.
        residents: what lies in the Unified Buffer, from when to when.
        design: the chip that it was compiled for.
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
