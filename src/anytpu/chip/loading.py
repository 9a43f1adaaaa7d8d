"""`load` and `assemble`: programs that were made before, or written by hand."""

from __future__ import annotations

from pathlib import Path

from anytpu.chip import written
from anytpu.chip.chip_program import ChipProgram
from anytpu.chip.file_parts import SAVE_AGAIN
from anytpu.chip.image import Image
from anytpu.chip.quantized.nodes import QuantizedNetwork
from anytpu.errors import ChipFileError, SettingTypeError


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
    if network is not None:
        _check_outputs(network, image, str(path))
    return ChipProgram(image, network, settings)


def _check_outputs(network: QuantizedNetwork, image: Image, file: str) -> None:
    """Refuse a network with an output that the instructions beside it do not compute."""
    computed = {binding.tensor for binding in (*image.inputs, *image.outputs)}
    for service in image.services:
        computed |= {service.step.output, *service.step.inputs}
    for port in network.outputs:
        if port.tensor not in computed:
            raise ChipFileError(
                f"The file {file!r} cannot be used: its instructions do not compute {port.tensor!r}, an output of its "
                f"network. Compile it again, or {SAVE_AGAIN}"
            )


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
