"""The compiler's answers: `CompiledProgram` or `OutOfMemory`. Any other outcome is an error.

Rule: sizes are bytes of one device. These records are stored on the disk between runs, so they hold only numbers and
text.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """A program that the compiler accepted.

    Attributes:
        hlo: the optimized, scheduled HLO module, as text.
        argument_bytes: size of the arguments in memory, bytes.
        output_bytes: size of the outputs in memory, bytes.
        alias_bytes: the part of the outputs that reuses the memory of arguments, bytes.
        temp_bytes: size of the temporaries, bytes.
        code_bytes: size of the machine code, bytes.
        peak_bytes: maximum in use at a time, without the code, bytes; None if the compiler does not state it.
        compiler: name of the compiler: "libtpu 0.0.51".
        compile_s: time of the compilation, seconds.
        from_cache: whether the answer was on the disk.
        left_out: calls of the step that only print or watch, and were not compiled.
    """

    hlo: str = dataclasses.field(repr=False)
    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    code_bytes: int
    peak_bytes: int | None
    compiler: str
    compile_s: float
    from_cache: bool = False
    left_out: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class OutOfMemory:
    """A program that does not fit.

    Attributes:
        needed_bytes: needed memory of one device, bytes.
        limit_bytes: available memory of one device, bytes.
        said: the first lines of the compiler's message.
        allocations: the largest buffers of the message, if it lists any: (bytes, shape, op_name) each.
        compiler: name of the compiler: "libtpu 0.0.51".
        compile_s: time of the compilation, seconds.
        from_cache: whether the answer was on the disk.
        left_out: calls of the step that only print or watch, and were not compiled.
    """

    needed_bytes: int
    limit_bytes: int
    said: str
    allocations: tuple[tuple[int, str, str], ...]
    compiler: str
    compile_s: float
    from_cache: bool = False
    left_out: tuple[str, ...] = ()
