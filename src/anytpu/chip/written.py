"""Write a program as assembly text, as a file or as ONNX, for `ChipProgram`.

Rule: the module of each format is imported on first use.
"""

from __future__ import annotations

from pathlib import Path

from anytpu.chip.images import ImageCache
from anytpu.errors import SettingTypeError


def path_of(path: str | Path) -> Path:
    """Convert to `Path`.

    Raises:
        SettingTypeError: the value is neither a string nor a path.
    """
    try:
        return Path(path)
    except TypeError as error:
        raise SettingTypeError(f"a path must be a string or a pathlib.Path, not {path!r}.") from error


def text(images: ImageCache, batch: int | None, weights: bool) -> str:
    """Return the instructions for a batch size as assembly text."""
    from anytpu.chip.assembly import disassemble

    return disassemble(images.image(batch), weights=weights)


def save(images: ImageCache, path: str | Path) -> Path:
    """Write a `.tpu` file and return its path."""
    from anytpu.chip import file

    return file.write(path_of(path), images.own, images.network, images.settings)


def save_onnx(images: ImageCache, path: str | Path, integers: bool) -> Path:
    """Write the quantized network as ONNX and return its path."""
    from anytpu.chip.onnx import write

    return write(images.network_to("write as ONNX"), path_of(path), integers=integers)
