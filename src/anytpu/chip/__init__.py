"""The first TPU in software: a model becomes int8 instructions, which run to the bit and whose cycles are counted.

Idea: `tpu.chip.compile(model, calibration)` returns a `ChipProgram`: run it, time it, look at it, save it.

Rule: nothing here is a chip. What `run` returns is exact, by the meaning of the instructions; what `time` returns is
predicted by a model of the chip that the paper describes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anytpu.chip.chip_program import ChipProgram
    from anytpu.chip.compilation import compile
    from anytpu.chip.design import TPU_V1, Design
    from anytpu.chip.loading import assemble, load

__all__ = ["TPU_V1", "ChipProgram", "Design", "assemble", "compile", "load"]

_HOMES = {
    "TPU_V1": "design",
    "ChipProgram": "chip_program",
    "Design": "design",
    "assemble": "loading",
    "compile": "compilation",
    "load": "loading",
}


def __getattr__(name: str) -> object:
    # Loaded when first used: the instructions alone need neither JAX nor a model.
    if name not in _HOMES:
        raise AttributeError(f"anytpu.chip has no name {name!r}; it has {', '.join(__all__)}.")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
