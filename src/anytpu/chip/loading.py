"""`load` and `assemble`: programs that were made before, or written by hand."""

from __future__ import annotations

from pathlib import Path

from anytpu.chip import written
from anytpu.chip.chip_program import ChipProgram
from anytpu.errors import SettingTypeError


def load(path: str | Path) -> ChipProgram:
    """Return the program in a `.tpu` file, which `ChipProgram.save` wrote, checked as one that is assembled.

    Raises:
        ChipFileError: there is no such file, or it is none, or was cut short, altered, or written by a newer version.
        ChipError: its instructions make no sense. HazardError: they would give results that depend on luck.

    Example:
        >>> tpu.chip.load("model.tpu").run(x)  # doctest: +SKIP
    """
    from anytpu.chip import checking, file

    image, network, settings = file.read(written.path_of(path))
    checking.check(image)
    return ChipProgram(image, network, settings)


def assemble(text: str, name: str = "assembled") -> ChipProgram:
    """Return the program that a text in assembly describes, checked: see docs/chip_isa.md.

    Raises:
        AssemblyError: a line cannot be read. HazardError: the program would give results that depend on luck.

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
