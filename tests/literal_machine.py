"""The chip, number by number: each instruction as its text says, in plain Python, as slow as that is.

It shares nothing with the machine but the records, and keeps the numbers in lists of plain integers.
"""

from __future__ import annotations

import struct

import numpy as np

from anytpu.chip.image.image import Image
from anytpu.chip.isa.instructions import (
    Activate,
    Convolve,
    Halt,
    MatrixMultiply,
    ReadHostMemory,
    ReadWeights,
    SetConfiguration,
    WriteHostMemory,
)
from anytpu.chip.isa.registers import Register as R

f32 = np.float32


def wrap(number: int) -> int:
    """Return what 32 bits keep of a number."""
    return (number + 2**31) % 2**32 - 2**31


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


class LiteralMachine:
    """Runs the instructions of an image on a host's buffer, which it changes."""

    def __init__(self, image: Image, host: bytearray):
        self.image, self.host = image, host
        self.array = image.design.array
        self.buffer = [0] * image.design.unified_buffer_bytes
        self.accumulators = [[0] * self.array for _ in range(image.design.accumulator_rows)]
        self.registers: dict[int, int | float] = dict.fromkeys(map(int, R), 0)
        self.weights = image.weights.tobytes()
        self.tiles: list[list[list[int]]] = []
        self.parameters: list[tuple[tuple[int, ...], tuple[float, ...]]] = []
        self.tables: dict[int, tuple[int, ...]] = {}
        self.tile: list[list[int]] = []
        self.parameter: tuple[tuple[int, ...], tuple[float, ...]] = ((), ())

    def run(self) -> None:
        for instruction in self.image.instructions:
            match instruction:
                case Halt():
                    return
                case SetConfiguration():
                    self.registers[instruction.register] = instruction.value
                case ReadHostMemory(host, address, units):
                    self.buffer[32 * address : 32 * (address + units)] = self.host[host : host + 32 * units]
                case WriteHostMemory(host, address, units):
                    self.host[host : host + 32 * units] = bytes(self.buffer[32 * address : 32 * (address + units)])
                case ReadWeights():
                    self.read_weights(instruction)
                case MatrixMultiply() | Convolve():
                    self.product(instruction)
                case Activate():
                    self.activate(instruction)

    def get(self, register: R) -> int:
        return int(self.registers[register])

    def read_weights(self, instruction: ReadWeights) -> None:
        byte, n = instruction.address * 2048, self.array
        for i in range(instruction.count):
            byte = -(-byte // 2048) * 2048
            if instruction.kind == "tile":
                rows = [self.weights[byte + r * n : byte + (r + 1) * n] for r in range(n)]
                self.tiles.append([[signed(b) for b in row] for row in rows])
                byte += n * n
            elif instruction.kind == "parameters":
                bias = struct.unpack_from(f"<{n}i", self.weights, byte)
                self.parameters.append((bias, struct.unpack_from(f"<{n}f", self.weights, byte + 4 * n)))
                byte += 8 * n
            else:
                form = "<65536h" if instruction.wide else "<256b"
                self.tables[instruction.slot + i] = struct.unpack_from(form, self.weights, byte)
                byte += struct.calcsize(form)

    def number(self, plane: int, row: int, pitch: int, lane: int, wide: bool, offset: int) -> int:
        """Return the signed number in a lane of a row of the plane at unit `plane`."""
        byte = 32 * (plane + row * pitch) + lane
        if not wide:
            return signed(self.buffer[byte])
        return self.buffer[byte] + 256 * signed(self.buffer[byte + 32 * offset])

    def position(self, row: int, tap: int) -> int | None:
        """Return the row of the source that a tap of a row of the result reads; None outside."""
        position, n = divmod(self.get(R.FIRST_ROW) + row, self.get(R.BATCH))
        oh, ow = divmod(position, self.get(R.OUT_WIDTH))
        kh, kw = divmod(tap, self.get(R.KERNEL_WIDTH))
        h = oh * self.get(R.STRIDE_HEIGHT) - self.get(R.PAD_TOP) + kh * self.get(R.DILATION_HEIGHT)
        w = ow * self.get(R.STRIDE_WIDTH) - self.get(R.PAD_LEFT) + kw * self.get(R.DILATION_WIDTH)
        if not (0 <= h < self.get(R.IN_HEIGHT) and 0 <= w < self.get(R.IN_WIDTH)):
            return None
        return (h * self.get(R.IN_WIDTH) + w) * self.get(R.BATCH) + n

    def entering(self, instruction: MatrixMultiply | Convolve, p: int, row: int) -> list[int]:
        """Return the numbers that a row of a pass sends into the array."""
        lanes = [0] * self.array
        pitch, offset, wide = self.get(R.PITCH), self.get(R.HIGH_OFFSET), instruction.wide
        if isinstance(instruction, MatrixMultiply):
            plane = instruction.address + p * self.get(R.PLANE_STRIDE)
            for lane in range(min(self.array, 32 * pitch)):
                number = self.number(plane, row, pitch, lane, wide, offset)
                lanes[lane] = number % 256 if instruction.unsigned else number
            return lanes
        taps = self.get(R.KERNEL_HEIGHT) * self.get(R.KERNEL_WIDTH)
        first = self.get(R.FIRST_TAP) + p * self.get(R.TAPS)
        for j, tap in enumerate(range(first, min(first + self.get(R.TAPS), taps))):
            source = self.position(row, tap)
            for lane in range(self.get(R.LANES)):
                number = self.get(R.ZERO_POINT)
                if source is not None:
                    number = self.number(instruction.address, source, pitch, lane, wide, offset)
                    number = number % 256 if instruction.unsigned else number
                lanes[j * self.get(R.LANES) + lane] = number
        return lanes

    def product(self, instruction: MatrixMultiply | Convolve) -> None:
        for p in range(instruction.repeat):
            if p or not instruction.keep:
                self.tile = self.tiles.pop(0)
            for row in range(instruction.rows):
                entering = self.entering(instruction, p, row)
                sums = self.accumulators[instruction.accumulator + row]
                for column in range(self.array):
                    new = sum(a * self.tile[i][column] for i, a in enumerate(entering))
                    old = sums[column] if p or instruction.accumulate else 0
                    sums[column] = wrap(old + new)

    def activate(self, instruction: Activate) -> None:
        if instruction.operation == "scale" and not instruction.keep:
            self.parameter = self.parameters.pop(0)
        table = self.tables[self.get(R.TABLE)] if instruction.table else None
        result = {}
        for row in range(instruction.rows):
            for lane in range(32 * (self.get(R.OUT_UNITS) or self.get(R.OUT_PITCH))):
                with np.errstate(over="ignore"):
                    q = self.integer(instruction, row, lane)
                q = int(min(max(q, self.get(R.LOW)), self.get(R.HIGH)))
                if table is not None:
                    q = table[q + len(table) // 2]
                byte = 32 * (instruction.target + row * self.get(R.OUT_PITCH)) + lane
                result[byte] = q % 256
                if instruction.wide_out:
                    result[byte + 32 * self.get(R.OUT_HIGH_OFFSET)] = (q >> 8) % 256
        for byte, value in result.items():
            self.buffer[byte] = value

    def integer(self, instruction: Activate, row: int, lane: int) -> float:
        """Return a number of the result before it is clipped."""
        operation, wide = instruction.operation, instruction.wide
        pitch, offset = self.get(R.PITCH), self.get(R.HIGH_OFFSET)
        if operation == "scale":
            lane += self.get(R.SOURCE_LANE)
            if lane >= self.array:
                return self.rounded(f32(0))
            bias, multiplier = self.parameter[0][lane], f32(self.parameter[1][lane])
            total = wrap(self.accumulators[instruction.source + row][lane] + bias)
            return self.rounded(f32(total) * multiplier)
        if lane >= 32 * pitch:
            return 0 if operation in ("copy", "max") else self.rounded(f32(0))
        if operation == "copy":
            return self.number(instruction.source, row, pitch, lane, wide, offset)
        if operation in ("max", "average"):
            return self.pool(instruction, row, lane)
        if lane >= 32 * self.get(R.SECOND_PITCH):
            return self.rounded(f32(0))
        a = self.number(instruction.source, row, pitch, lane, wide, offset) - self.get(R.ZERO_POINT)
        row %= self.get(R.SECOND_ROWS)
        b = self.number(
            instruction.second, row, self.get(R.SECOND_PITCH), lane, wide, self.get(R.SECOND_HIGH_OFFSET)
        ) - self.get(R.SECOND_ZERO_POINT)
        left, right = f32(a) * f32(self.registers[R.SCALE]), f32(b) * f32(self.registers[R.SECOND_SCALE])
        number = {"add": left + right, "subtract": left - right, "multiply": left * right}[operation]
        return self.rounded(f32(number / f32(self.registers[R.OUT_SCALE])))

    def pool(self, instruction: Activate, row: int, lane: int) -> float:
        taps = range(self.get(R.KERNEL_HEIGHT) * self.get(R.KERNEL_WIDTH))
        sources = [s for s in (self.position(row, tap) for tap in taps) if s is not None]
        pitch, offset = self.get(R.PITCH), self.get(R.HIGH_OFFSET)
        numbers = [self.number(instruction.source, s, pitch, lane, instruction.wide, offset) for s in sources]
        if instruction.operation == "max":
            return max(numbers, default=self.get(R.ZERO_POINT))
        total = f32(wrap(sum(number - self.get(R.ZERO_POINT) for number in numbers)))
        multiplier = f32(self.registers[R.SCALE])
        if instruction.counted:
            multiplier = multiplier * (f32(1) / f32(max(len(numbers), 1)))
            multiplier = multiplier / f32(self.registers[R.OUT_SCALE])
        return self.rounded(total * multiplier)

    def rounded(self, number: np.float32) -> float:
        assert isinstance(number, np.float32)
        return float(np.rint(number)) + self.get(R.OUT_ZERO_POINT)
