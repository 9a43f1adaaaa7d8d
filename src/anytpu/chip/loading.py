"""`load` and `assemble`: programs from a file or from assembly text."""

from __future__ import annotations

from pathlib import Path

from anytpu._calls import explain_arguments
from anytpu.chip.chip_program import ChipProgram
from anytpu.chip.images import path_of
from anytpu.errors import SettingTypeError


def load(path: str | Path) -> ChipProgram:
    """Return the program of a `.tpu` file, written by `ChipProgram.save`, with the same checks as `assemble`.

    Raises:
        ChipFileError: the file does not exist, has another format, is truncated or altered, or is from a newer version.
        ChipError: the instructions are invalid.
        HazardError: the results would depend on the timing of the units.

    Example:
        >>> tpu.chip.load("model.tpu").run(x)  # doctest: +SKIP
    """
    from anytpu.chip import checking, file

    image, network, spill = file.read(path_of(path))
    checking.check(image)
    return ChipProgram(image, network, spill)


@explain_arguments
def assemble(text: str, name: str = "assembled") -> ChipProgram:
    """Return the checked program of an assembly text; `anytpu docs chip_isa` has the syntax.

    Raises:
        AssemblyError: a line cannot be parsed.
        HazardError: the results would depend on the timing of the units.

    Example:
        >>> tpu.chip.assemble("halt").disassemble().split()[-1]  # doctest: +SKIP
        'halt'
    """
    from anytpu.chip import assembly, checking

    if not isinstance(text, str):
        raise SettingTypeError(f"a text in assembly must be a string, not {text!r:.60}.")
    image = assembly.assemble(text, name)
    checking.check(image)
    return ChipProgram(image)
