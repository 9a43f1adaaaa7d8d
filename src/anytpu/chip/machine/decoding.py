"""`decode`: resolve the registers, FIFOs and addresses of an image's instructions; return its steps in program order.

Idea: registers, FIFO contents and addresses do not depend on data, so they are resolved once per image.

Rule: only an image that `chip/checking` accepted is decoded, so nothing is checked here again. Such a program has no
hazards. So executing its instructions one after another gives the results of the parallel units.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from typing import Any

from anytpu.chip.image.image import Image
from anytpu.chip.isa import instructions as isa
from anytpu.chip.isa.accesses import blocks_of
from anytpu.chip.isa.issue import RESET, Registers, issue
from anytpu.chip.isa.registers import Register
from anytpu.chip.machine.steps import (
    ActivateStep,
    BufferPlane,
    MachineStep,
    PassInput,
    ProductStep,
    ServiceStep,
    TableStep,
    TransferStep,
    WindowRegisters,
)

_PAIRS = ("add", "subtract", "multiply")


def decode(image: Image) -> tuple[MachineStep, ...]:
    """Return the steps of an image that was checked."""
    decoder = _Decoder(image)
    for issued in issue(image.instructions):
        action = _ACTIONS.get(type(issued.instruction))
        if action is not None:
            decoder.number, decoder.registers = issued.number, issued.registers
            action(decoder, issued.instruction)
    return tuple(decoder.steps)


class _Decoder:
    """The state of decoding: registers, FIFO contents, and the tile and parameters in use."""

    def __init__(self, image: Image):
        self.image = image
        self.registers: Registers = RESET
        self.tiles: collections.deque[int] = collections.deque()
        self.parameters: collections.deque[int] = collections.deque()
        self.tile = self.parameter = self.number = -1
        self.steps: list[MachineStep] = []

    def interrupt(self, instruction: isa.InterruptHost) -> None:
        self.steps.append(ServiceStep(self.number, instruction.number))

    def transfer(self, instruction: isa.ReadHostMemory | isa.WriteHostMemory) -> None:
        inwards = isinstance(instruction, isa.ReadHostMemory)
        where = instruction.host_address, instruction.address, instruction.units
        self.steps.append(TransferStep(self.number, *where, inwards))

    def read_weights(self, instruction: isa.ReadWeights) -> None:
        blocks = blocks_of(instruction, self.image.design)
        addresses = range(instruction.address, instruction.address + instruction.count * blocks, blocks)
        if instruction.kind == "tile":
            self.tiles.extend(addresses)
        elif instruction.kind == "parameters":
            self.parameters.extend(addresses)
        else:
            where = instruction.address, instruction.count, instruction.slot
            self.steps.append(TableStep(self.number, *where, instruction.wide))

    def product(self, instruction: isa.MatrixMultiply | isa.Convolve) -> None:
        tiles = []
        for p in range(instruction.repeat):
            if p or not instruction.keep:
                self.tile = self.tiles.popleft()
            tiles.append(self.tile)
        feed = self.convolve_feed if isinstance(instruction, isa.Convolve) else self.multiply_feed
        feeds = tuple(feed(instruction, p) for p in range(instruction.repeat))
        where = instruction.accumulator, instruction.rows
        self.steps.append(ProductStep(self.number, feeds, tuple(tiles), *where, instruction.accumulate))

    def multiply_feed(self, instruction: isa.ArrayInstruction, p: int) -> PassInput:
        stride = self.integer(Register.PLANE_STRIDE)
        plane = self.source_plane(instruction.address + p * stride, instruction.wide)
        return PassInput(plane, min(plane.lanes, self.image.design.array), unsigned=instruction.unsigned)

    def convolve_feed(self, instruction: isa.ArrayInstruction, p: int) -> PassInput:
        window, taps = self.window(), self.integer(Register.TAPS)
        first = self.integer(Register.FIRST_TAP) + p * taps
        return PassInput(
            self.source_plane(instruction.address, instruction.wide),
            self.integer(Register.LANES),
            window,
            first,
            min(taps, window.kernel_height * window.kernel_width - first),
            self.integer(Register.ZERO_POINT),
            instruction.unsigned,
        )

    def activate(self, instruction: isa.Activate) -> None:
        offset = self.integer(Register.OUT_HIGH_OFFSET) if instruction.wide_out else None
        if instruction.operation == "scale":
            self.parameter = self.parameter if instruction.keep else self.parameters.popleft()
            source: dict[str, Any] = {"accumulator": instruction.source, "parameters": self.parameter}
        else:
            source = self.buffer_source(instruction)
        self.steps.append(
            ActivateStep(
                self.number,
                instruction.operation,
                instruction.rows,
                BufferPlane(instruction.target, self.integer(Register.OUT_PITCH), offset),
                out_zero_point=self.integer(Register.OUT_ZERO_POINT),
                low=self.integer(Register.LOW),
                high=self.integer(Register.HIGH),
                table=self.integer(Register.TABLE) if instruction.table else None,
                **source,
            )
        )

    def buffer_source(self, instruction: isa.Activate) -> dict[str, Any]:
        """Return the fields of an Activate's step for operands in the Unified Buffer."""
        plane = self.source_plane(instruction.source, instruction.wide)
        fields: dict[str, Any] = {"plane": plane, "zero_point": self.integer(Register.ZERO_POINT)}
        if instruction.operation in ("max", "average"):
            fields |= {"window": self.window(), "counted": instruction.counted}
        if instruction.operation in ("average", *_PAIRS):
            fields["scale"] = self.scale(Register.SCALE)
        if instruction.counted or instruction.operation in _PAIRS:
            fields["out_scale"] = self.scale(Register.OUT_SCALE)
        if instruction.operation in _PAIRS:
            offset = self.integer(Register.SECOND_HIGH_OFFSET) if instruction.wide else None
            fields |= {
                "second": BufferPlane(instruction.second, self.integer(Register.SECOND_PITCH), offset),
                "second_rows": self.integer(Register.SECOND_ROWS),
                "second_zero_point": self.integer(Register.SECOND_ZERO_POINT),
                "second_scale": self.scale(Register.SECOND_SCALE),
            }
        return fields

    def source_plane(self, address: int, wide: bool) -> BufferPlane:
        offset = self.integer(Register.HIGH_OFFSET) if wide else None
        return BufferPlane(address, self.integer(Register.PITCH), offset)

    def window(self) -> WindowRegisters:
        return WindowRegisters(*(int(self.registers[register]) for register in _WINDOW))

    def integer(self, register: Register) -> int:
        return int(self.registers[register])

    def scale(self, register: Register) -> float:
        return float(self.registers[register])


_WINDOW = tuple(Register[field.name.upper()] for field in dataclasses.fields(WindowRegisters))

_ACTIONS: dict[type, Callable[[_Decoder, Any], None]] = {
    isa.InterruptHost: _Decoder.interrupt,
    isa.ReadHostMemory: _Decoder.transfer,
    isa.WriteHostMemory: _Decoder.transfer,
    isa.ReadWeights: _Decoder.read_weights,
    isa.MatrixMultiply: _Decoder.product,
    isa.Convolve: _Decoder.product,
    isa.Activate: _Decoder.activate,
}
