"""`load` and `assemble`: programs from a file or from assembly text."""

from __future__ import annotations

from pathlib import Path

from anytpu._calls import explain_arguments
from anytpu.chip.chip_program import ChipProgram
from anytpu.chip.file_parts import SAVE_AGAIN
from anytpu.chip.graph.nodes import Network
from anytpu.chip.image.image import Image
from anytpu.chip.images import path_of
from anytpu.errors import ChipFileError, SettingTypeError


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
    if network is not None:
        _check_interface(network, image, str(path))
    return ChipProgram(image, network, spill)


def _check_interface(network: Network, image: Image, file: str) -> None:
    """Raise an error if the instructions hold another tensor than the network, or do not compute an output of it."""
    services = [bound for service in image.services for bound in (*service.inputs, service.output)]
    for bound in filter(None, (*image.inputs, *image.outputs, *services)):
        described = network.shapes.get(bound.tensor), network.quantizations.get(bound.tensor)
        if described != (bound.shape, bound.quantization):
            raise ChipFileError(
                f"The file {file!r} cannot be used: its instructions hold {bound.tensor!r:.100} in another form than "
                f"its network describes. Compile it again, or {SAVE_AGAIN}"
            )
    computed = {binding.tensor for binding in (*image.inputs, *image.outputs)}
    for service in image.services:
        computed |= {service.step.output, *service.step.inputs}
    for port in network.outputs:
        if port.tensor not in computed:
            raise ChipFileError(
                f"The file {file!r} cannot be used: its instructions do not compute {port.tensor!r}, an output of its "
                f"network. Compile it again, or {SAVE_AGAIN}"
            )


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
