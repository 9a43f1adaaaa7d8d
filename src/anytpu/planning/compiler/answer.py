"""The compiler's answers: `CompiledProgram` or `OutOfMemory`. Any other outcome is an error.

Idea: the compiler has three messages about a program that does not fit, and each is read. "the total memory required
for HLO temporaries (32.00G) exceeds available HBM (15.75G)". "Used 63.80G of 30.75G hbm" with a list of the largest
allocations. "Requires 3.47E, has 14.49G available". A G is 2**30 bytes.

Rule: sizes are bytes of one device. These records are stored on the disk between runs, so they hold only numbers and
text.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

_SIZE = r"(\d+(?:\.\d+)?)([KMGTPE]?)B?"
_SHORTAGES = (
    re.compile(rf"memory required for HLO temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"Requires {_SIZE}, has {_SIZE} available"),
)
_UNITS = " KMGTPE"
_SAID_LINES = 12


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


def answer_of(
    header: dict[str, Any], text: bytes, left_out: tuple[str, ...] = (), from_cache: bool = False
) -> CompiledProgram | OutOfMemory | None:
    """Return the answer of a child or of the disk as a record; None for a refusal.

    Args:
        header: sizes of the compiled program, or the compiler's message as "said"; always "compiler" and "compile_s".
        text: the HLO text of the compiled program.
        left_out: calls of the step that only print or watch, and were not compiled.
        from_cache: whether the answer was on the disk.

    Example:
        >>> said = "RESOURCE_EXHAUSTED: Ran out of memory. Used 63.80G of 30.75G hbm."
        >>> answer_of({"said": said, "compiler": "libtpu 0.0.51", "compile_s": 1.0}, b"").limit_bytes / 2**30
        30.75
    """
    if "said" not in header:
        return CompiledProgram(hlo=text.decode(), from_cache=from_cache, left_out=left_out, **header)
    said: str = header["said"]
    match = next((match for form in _SHORTAGES if (match := form.search(said))), None)
    # A message in another form is a refusal of the program, not a lack of memory.
    if match is None:
        return None
    needed, needed_unit, limit, limit_unit = match.groups()
    return OutOfMemory(
        needed_bytes=_bytes(needed, needed_unit),
        limit_bytes=_bytes(limit, limit_unit),
        said="\n".join(line.rstrip() for line in said.strip().splitlines()[:_SAID_LINES]),
        allocations=tuple(_allocations(said)),
        compiler=header["compiler"],
        compile_s=header["compile_s"],
        from_cache=from_cache,
        left_out=left_out,
    )


def _allocations(said: str) -> list[tuple[int, str, str]]:
    listed = re.split(r"\n(?= *\d+\. Size: )", said)[1:]
    allocations = []
    for text in listed:
        size, shape = re.search(rf"\d+\. Size: {_SIZE}", text), re.search(r"Shape: (.*)", text)
        operator = re.search(r'op_name="([^"]*)"', text)
        if size and shape:
            allocations.append((_bytes(*size.groups()), shape[1].strip(), operator[1] if operator else ""))
    return allocations


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * 1024 ** _UNITS.index(unit or " "))
