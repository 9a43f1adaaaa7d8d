"""`Shape`, `Instruction`, `Computation`: the parts of a module.

Rule: shapes are those of one device. Properties without a field stay in the instruction's text. All code that knows the
compiler's notation is in this folder.
"""

from __future__ import annotations

import dataclasses
import re

_PARAMETER = re.compile(r"parameter\((\d{1,9})\)")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """The shape and layout of one array.

    Attributes:
        dtype: "f32", "bf16", "pred", ...
        dims: its sizes, () for a scalar.
        minor_to_major: dimensions from the fastest to the slowest.
        tiles: the tiles of its layout: ((8, 128), (2, 1)); () for none.
        memory_space: 0 for the main memory (HBM), else n of S(n).
        bytes: size of its elements.
        padded_bytes: size in memory, padding included.
    """

    dtype: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...]
    memory_space: int
    bytes: int
    padded_bytes: int

    def __str__(self) -> str:
        """Return type and sizes as the compiler writes them: "bf16[128,28,28,32]"."""
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
        name: "fusion.12", without the percent sign.
        opcode: "fusion", "all-reduce", "while", ...
        shapes: its results: one shape, or those of the flattened tuple.
        operands: names of its operands, instructions of the same computation.
        called: names of called computations, in the order of the text. Examples: the body of a fusion, (condition,
            body) of a while, the branches of a conditional.
        cycles: the compiler's estimate for one execution on one device, cycles, or None.
        op_name: the user's path, "jit(step)/jvp(conv1)/conv_general_dilated", or "".
        frame: number of its stack frame, or None: `module.source_of(instruction)` gives the line.
        text: the whole line after the name, for everything else: `kind=`, `window=`, `replica_groups=`, backend_config.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    called: tuple[str, ...]
    cycles: int | None
    op_name: str
    frame: int | None
    text: str = dataclasses.field(repr=False)

    @property
    def parameter_number(self) -> int | None:
        """The number of a parameter of the computation; None for any other instruction, or without a number."""
        match = _PARAMETER.search(self.text) if self.opcode == "parameter" else None
        return int(match[1]) if match else None

    @property
    def call_target(self) -> str:
        """Target of a custom call: "TopK"; "" for any other instruction."""
        match = _TARGET.search(self.text) if self.opcode == "custom-call" else None
        return match[1] if match else ""


@dataclasses.dataclass(frozen=True)
class Computation:
    """A computation: instructions by name, in order of execution if the module is scheduled."""

    name: str
    instructions: dict[str, Instruction] = dataclasses.field(repr=False)
    root: str
