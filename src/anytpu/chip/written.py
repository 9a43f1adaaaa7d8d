"""A program as text, as a file and as ONNX: what `ChipProgram` writes.

Rule: each form is imported when it is asked for.
"""

from __future__ import annotations

from pathlib import Path

from anytpu.chip.images import Images
from anytpu.errors import SettingTypeError


def path_of(path: str | Path) -> Path:
    """Return what was given as a path as one.

    Raises:
        SettingTypeError: it is none.
    """
    try:
        return Path(path)
    except TypeError as error:
        raise SettingTypeError(f"a path must be a string or a pathlib.Path, not {path!r}.") from error


def text(images: Images, batch: int | None, weights: bool) -> str:
    """Return the instructions for a batch in assembly."""
    from anytpu.chip.assembly import disassemble

    return disassemble(images.image(batch), weights=weights)


def save(images: Images, path: str | Path) -> Path:
    """Write a `.tpu` file and return its path."""
    from anytpu.chip import file

    return file.write(path_of(path), images.own, images.network, images.settings)


def save_onnx(images: Images, path: str | Path, unsigned: bool, integers: bool) -> Path:
    """Write the quantized network as ONNX and return its path."""
    from anytpu.chip.onnx import write

    return write(images.network_to("write as ONNX"), path_of(path), unsigned=unsigned, integers=integers)
