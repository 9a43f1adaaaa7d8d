"""What the compiler answers: `CompiledProgram`, or `OutOfMemory`. Anything else is an error.

Rule: sizes are bytes of one device. This is what lies on the disk between runs, so it holds nothing but numbers and
text.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """A program that the compiler accepted.

    Attributes:
        hlo: the optimized, scheduled HLO module, as text.
        argument_bytes: what goes in, as it lies in memory.
        output_bytes: what comes out.
        alias_bytes: of the outputs, what lies where an argument lay.
        temp_bytes: everything between.
        code_bytes: the program itself.
        peak_bytes: the most that is in use at a time, code not included; None where the compiler does not say.
        compiler: who compiled: "libtpu 0.0.51".
        compile_s: how long it took, seconds.
        from_cache: True when the answer was on the disk.
        left_out: the calls of the step that only print or watch, which were not compiled.
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
        needed_bytes: what it would need.
        limit_bytes: what there is.
        said: the compiler's own words, first lines.
        allocations: the largest buffers that it lists: (bytes, shape, op_name) each, where it does.
        compiler: who compiled: "libtpu 0.0.51".
        compile_s: how long it took, seconds.
        from_cache: True when the answer was on the disk.
        left_out: the calls of the step that only print or watch, which were not compiled.
    """

    needed_bytes: int
    limit_bytes: int
    said: str
    allocations: tuple[tuple[int, str, str], ...]
    compiler: str
    compile_s: float
    from_cache: bool = False
    left_out: tuple[str, ...] = ()
