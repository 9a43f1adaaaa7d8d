"""Small images made by hand, for tests of the machine: all the host's buffer goes in, and all of it comes out."""

from __future__ import annotations

import numpy as np

from anytpu.chip.graph.nodes import Quantization
from anytpu.chip.image.image import Binding, Image
from anytpu.chip.isa.design import Design
from anytpu.chip.isa.instructions import (
    Halt,
    Instruction,
    ReadHostMemory,
    SetConfiguration,
    Sync,
    WriteHostMemory,
)
from anytpu.chip.isa.registers import Register
from anytpu.chip.machine import run
from chip_witness import witness
from literal_machine import LiteralMachine

SMALL = Design(array=8, unified_buffer_bytes=32 * 512, accumulator_rows=64)


def configured(**values: float) -> list[Instruction]:
    """Return the instructions that set registers, by their names in small letters."""
    exact = {name: float(np.float32(value)) if isinstance(value, float) else value for name, value in values.items()}
    return [SetConfiguration(Register[name.upper()], value) for name, value in exact.items()]


def blocks(*things: np.ndarray | list) -> np.ndarray:
    """Return a Weight Memory of things that each start at a whole block."""
    parts = []
    for thing in things:
        content = np.frombuffer(np.asarray(thing).tobytes(), np.uint8)
        parts.append(np.pad(content, (0, -len(content) % 2048)))
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def parameters(bias: np.ndarray, multiplier: np.ndarray) -> np.ndarray:
    """Return the bytes of a block of parameters."""
    return np.frombuffer(bias.astype("<i4").tobytes() + multiplier.astype("<f4").tobytes(), np.uint8)


def image_of(instructions: list[Instruction], weights: np.ndarray, design: Design = SMALL) -> Image:
    """Return an image that reads the host's buffer into all of the Unified Buffer, works, and writes it back."""
    units = design.buffer_units
    whole = Binding("whole", (units, 1, 32), Quantization(1.0), 0, (32,))
    body = [ReadHostMemory(0, 0, units), *instructions, WriteHostMemory(0, 0, units)]
    # Each waits for all that were issued before it.
    program = [issued for instruction in body for issued in (Sync(31, 31), instruction)]
    return Image("sample", (*program, Halt()), weights, 1, units * 32, (whole,), (whole,), design=design)


def literally(image: Image, content: np.ndarray) -> np.ndarray:
    """Return what the literal machine leaves in the host's buffer, as `run` returns it."""
    host = bytearray(content.tobytes())
    LiteralMachine(image, host).run()
    return np.frombuffer(bytes(host), np.int8).reshape(content.shape)


def content_of(rng: np.random.Generator, design: Design = SMALL) -> np.ndarray:
    """Return random bytes for the host's buffer."""
    return rng.integers(-128, 128, (1, design.buffer_units, 1, 32), np.int8)


def assert_literal(image: Image, seed: int) -> None:
    """Run an image on random bytes, and expect all that the literal machine leaves behind."""
    content = content_of(np.random.default_rng(seed), image.design)
    expected = literally(image, content)
    np.testing.assert_array_equal(run(image, {"whole": content})["whole"], expected)
    np.testing.assert_array_equal(witness(image, {"whole": content})["whole"], expected)
