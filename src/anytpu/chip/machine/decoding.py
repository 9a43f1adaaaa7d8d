"""Decoding: an image as the steps that its instructions ask for, in program order.

Idea: registers, FIFOs and addresses do not depend on the numbers that flow through the chip, so they are followed here,
once. What a hazard is in program order (an empty FIFO, accumulators or buffer that nothing wrote) is found here too.

Rule: instructions are taken one after another. That units work side by side changes nothing in the results of a program
in which nothing depends on luck; `chip/checking.py` finds the others.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

from anytpu.chip.design import UNIT_BYTES
from anytpu.chip.image import Image
from anytpu.chip.isa import instructions as isa
from anytpu.chip.isa.accesses import blocks_of
from anytpu.chip.isa.issue import RESET, Registers, issue
from anytpu.chip.isa.registers import Register
from anytpu.chip.machine.bounds import Bounds
from anytpu.chip.machine.steps import (
    ActivateStep,
    Feed,
    Plane,
    ProductStep,
    ServiceStep,
    Step,
    TableStep,
    TransferStep,
    Window,
)

_POOLS = ("max", "average")
_PAIRS = ("add", "subtract", "multiply")

GREATEST_SCALE = 1e30
"""Above it, two numbers that float32 cannot hold could meet and make no number at all."""


def decode(image: Image) -> tuple[Step, ...]:
    """Return the steps of an image.

    Raises:
        HazardError: an instruction reads what nothing wrote, pops an empty FIFO, or leaves a memory.
    """
    return _Decoder(image).run()


class _Decoder:
    """Follows the registers and the FIFOs through a program."""

    def __init__(self, image: Image):
        self.image = image
        self.bounds = Bounds(image)
        self.registers: Registers = RESET
        self.tiles: collections.deque[int] = collections.deque()
        self.parameters: collections.deque[int] = collections.deque()
        self.tile: int | None = None
        self.parameter: int | None = None
        self.steps: list[Step] = []
        self.number = 0

    def run(self) -> tuple[Step, ...]:
        for issued in issue(self.image.instructions):
            instruction = issued.instruction
            if isinstance(instruction, isa.Halt):
                return tuple(self.steps)
            self.number, self.registers = issued.number, issued.registers
            self.bounds.begin(self.number, type(instruction).__name__)
            action = _ACTIONS.get(type(instruction))
            if action is not None:
                action(self, instruction)
        self.bounds.begin(len(self.image.instructions), "the end")
        raise self.bounds.hazard("is reached without a Halt")

    def interrupt(self, instruction: isa.InterruptHost) -> None:
        if instruction.number >= len(self.image.services):
            raise self.bounds.hazard(
                f"asks for step {instruction.number} of the host, of which the image has {len(self.image.services)}"
            )
        self.steps.append(ServiceStep(self.number, instruction.number))

    def read_host(self, instruction: isa.ReadHostMemory) -> None:
        self.transfer(instruction, True)

    def write_host(self, instruction: isa.WriteHostMemory) -> None:
        self.transfer(instruction, False)

    def transfer(self, instruction: isa.ReadHostMemory | isa.WriteHostMemory, inwards: bool) -> None:
        self.bounds.transfer(instruction.host_address, instruction.address, instruction.units, inwards)
        self.steps.append(
            TransferStep(self.number, instruction.host_address, instruction.address, instruction.units, inwards)
        )

    def read_weights(self, instruction: isa.ReadWeights) -> None:
        design = self.image.design
        blocks = blocks_of(instruction, design)
        addresses = [instruction.address + i * blocks for i in range(instruction.count)]
        table_bytes = 2 * 65536 if instruction.wide else 256
        size_bytes = {"tile": design.tile_bytes, "parameters": 8 * design.array, "table": table_bytes}
        self.bounds.weights(addresses[-1:], size_bytes[instruction.kind])
        if instruction.kind == "tile":
            self.tiles.extend(addresses)
        elif instruction.kind == "parameters":
            self.parameters.extend(addresses)
            self.bounds.parameters(addresses)
        else:
            slots = range(instruction.slot, instruction.slot + instruction.count)
            self.bounds.write_tables(slots, instruction.wide)
            step = TableStep(self.number, instruction.address, instruction.count, instruction.slot, instruction.wide)
            self.steps.append(step)

    def pop_tile(self) -> int:
        if not self.tiles:
            raise self.bounds.hazard(
                "pops a tile of the weight FIFO, which is empty: no ReadWeights before it asks for one"
            )
        self.tile = self.tiles.popleft()
        return self.tile

    def product(self, instruction: isa.MatrixMultiply | isa.Convolve) -> None:
        tiles = []
        for p in range(instruction.repeat):
            if p == 0 and instruction.keep:
                if self.tile is None:
                    raise self.bounds.hazard("keeps the tile of the array, which has none yet")
                tiles.append(self.tile)
            else:
                tiles.append(self.pop_tile())
        feed = self.convolve_feed if isinstance(instruction, isa.Convolve) else self.multiply_feed
        feeds = tuple(feed(instruction, p) for p in range(instruction.repeat))
        for one in feeds:
            self.bounds.read_feed(one, instruction.rows)
        if instruction.accumulate:
            self.bounds.read_accumulators(instruction.accumulator, instruction.rows)
        self.bounds.write_accumulators(instruction.accumulator, instruction.rows)
        self.steps.append(
            ProductStep(
                self.number, feeds, tuple(tiles), instruction.accumulator, instruction.rows, instruction.accumulate
            )
        )

    def source_plane(self, address: int, wide: bool) -> Plane:
        offset = self.integer(Register.HIGH_OFFSET) if wide else None
        return Plane(address, self.integer(Register.PITCH), offset)

    def multiply_feed(self, instruction: isa.Product, p: int) -> Feed:
        plane = self.source_plane(instruction.address + p * self.integer(Register.PLANE_STRIDE), instruction.wide)
        return Feed(plane, min(plane.lanes, self.image.design.array), unsigned=instruction.unsigned)

    def convolve_feed(self, instruction: isa.Product, p: int) -> Feed:
        window, taps = self.window(), self.integer(Register.TAPS)
        plane = self.source_plane(instruction.address, instruction.wide)
        lanes = self.integer(Register.LANES)
        first = self.integer(Register.FIRST_TAP) + p * taps
        taps = min(taps, window.kernel_height * window.kernel_width - first)
        if taps <= 0:
            raise self.bounds.hazard(
                f"takes tap {first} of a window of {window.kernel_height} by {window.kernel_width} in pass {p}"
            )
        if not 0 < lanes <= plane.lanes or taps * lanes > self.image.design.array:
            raise self.bounds.hazard(
                f"puts {taps} taps of {lanes} lanes, of rows of {plane.lanes}, into an array of "
                f"{self.image.design.array} rows"
            )
        fill = self.integer(Register.ZERO_POINT)
        return Feed(plane, lanes, window, first, taps, fill, instruction.unsigned)

    def window(self) -> Window:
        window = Window(
            first_row=self.integer(Register.FIRST_ROW),
            **{
                field.name: self.integer(Register[field.name.upper()])
                for field in dataclasses.fields(Window)
                if field.name != "first_row"
            },
        )
        positive = ("batch", "out_width", "kernel_width", "stride_height", "stride_width")
        for name in positive:
            if getattr(window, name) == 0:
                raise self.bounds.hazard(f"needs register {name.upper()}, which is 0")
        return window

    def activate(self, instruction: isa.Activate) -> None:
        target = Plane(
            instruction.target,
            self.integer(Register.OUT_PITCH),
            self.integer(Register.OUT_HIGH_OFFSET) if instruction.wide_out else None,
        )
        source = self.activate_source(instruction)
        table = self.integer(Register.TABLE) if instruction.table else None
        if table is not None:
            self.bounds.read_table(table, instruction.wide_out)
        self.bounds.write_rows(target, instruction.rows)
        self.steps.append(
            ActivateStep(
                self.number,
                instruction.operation,
                instruction.rows,
                target,
                out_zero_point=self.integer(Register.OUT_ZERO_POINT),
                low=self.integer(Register.LOW),
                high=self.integer(Register.HIGH),
                table=table,
                **source,
            )
        )

    def activate_source(self, instruction: isa.Activate) -> dict:
        """Return what an Activate takes its numbers from, as the fields of its step."""
        if instruction.operation == "scale":
            self.bounds.read_accumulators(instruction.source, instruction.rows)
            return {"accumulator": instruction.source, "parameters": self.pop_parameters(instruction.keep)}
        plane = self.source_plane(instruction.source, instruction.wide)
        lanes = min(plane.lanes, UNIT_BYTES * self.integer(Register.OUT_PITCH))
        fields: dict = {"plane": plane, "zero_point": self.integer(Register.ZERO_POINT)}
        if instruction.operation in ("average", *_PAIRS):
            fields["scale"] = self.scale(Register.SCALE)
        if instruction.counted or instruction.operation in _PAIRS:
            fields["out_scale"] = self.scale(Register.OUT_SCALE)
        if instruction.counted and fields["scale"] / fields["out_scale"] > GREATEST_SCALE:
            raise self.bounds.hazard(f"needs SCALE / OUT_SCALE of at most {GREATEST_SCALE:g}")
        if instruction.operation in _POOLS:
            window = self.window()
            taps = window.kernel_height * window.kernel_width
            self.bounds.read_feed(Feed(plane, lanes, window, 0, taps), instruction.rows)
            return {**fields, "window": window, "counted": instruction.counted}
        self.bounds.read_feed(Feed(plane, lanes), instruction.rows)
        if instruction.operation in _PAIRS:
            fields |= self.second_operand(instruction)
        return fields

    def second_operand(self, instruction: isa.Activate) -> dict:
        offset = self.integer(Register.SECOND_HIGH_OFFSET) if instruction.wide else None
        second = Plane(instruction.second, self.integer(Register.SECOND_PITCH), offset)
        rows = self.integer(Register.SECOND_ROWS)
        if rows == 0:
            raise self.bounds.hazard("needs register SECOND_ROWS, which is 0")
        lanes = min(second.lanes, UNIT_BYTES * self.integer(Register.OUT_PITCH))
        self.bounds.read_feed(Feed(second, lanes), min(rows, instruction.rows))
        return {
            "second": second,
            "second_rows": rows,
            "second_zero_point": self.integer(Register.SECOND_ZERO_POINT),
            "second_scale": self.scale(Register.SECOND_SCALE),
        }

    def pop_parameters(self, keep: bool) -> int:
        if not keep:
            if not self.parameters:
                raise self.bounds.hazard(
                    "pops parameters of the parameter FIFO, which is empty: no ReadWeights before it asks for any"
                )
            self.parameter = self.parameters.popleft()
        if self.parameter is None:
            raise self.bounds.hazard("keeps the parameters of the last Activate, and there was none")
        return self.parameter

    def integer(self, register: Register) -> int:
        return int(self.registers[register])

    def scale(self, register: Register) -> float:
        value = float(self.registers[register])
        if not 0 < value <= GREATEST_SCALE:
            text = f"needs register {register.name} above 0 and at most {GREATEST_SCALE:g}; it is {value!r}"
            raise self.bounds.hazard(text)
        return value


_ACTIONS: dict[type, Callable] = {
    isa.InterruptHost: _Decoder.interrupt,
    isa.ReadHostMemory: _Decoder.read_host,
    isa.WriteHostMemory: _Decoder.write_host,
    isa.ReadWeights: _Decoder.read_weights,
    isa.MatrixMultiply: _Decoder.product,
    isa.Convolve: _Decoder.product,
    isa.Activate: _Decoder.activate,
}
