"""A program as text, as a file and as ONNX: what `ChipProgram` writes.

Rule: each form is imported when it is asked for.
"""

from __future__ import annotations

from pathlib import Path

from anytpu.chip.images import Images


def text(images: Images, batch: int | None, weights: bool) -> str:
    """Return the instructions for a batch in assembly."""
    from anytpu.chip.assembly import disassemble

    return disassemble(images.image(batch), weights=weights)


def save(images: Images, path: str | Path) -> Path:
    """Write a `.tpu` file and return its path."""
    from anytpu.chip import file

    file.write(path, images.own, images.network, images.settings)
    return Path(path)


def save_onnx(images: Images, path: str | Path, unsigned: bool, integers: bool) -> Path:
    """Write the quantized network as ONNX and return its path."""
    from anytpu.chip.onnx import write

    return write(images.network_to("write as ONNX"), path, unsigned=unsigned, integers=integers)
