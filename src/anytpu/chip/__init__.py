"""The first TPU in software: compile a model to int8 instructions, run them bit-exactly, and predict their cycles.

Idea: `tpu.chip.compile(model, calibration)` returns a `ChipProgram`, which can be run, timed, inspected and saved.

Rule: there is no hardware behind this. `run` returns exact results by the definition of the instructions. `time`
returns a prediction of a model of the chip (Jouppi et al., 2017).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anytpu.chip.chip_program import ChipProgram
    from anytpu.chip.compilation import compile
    from anytpu.chip.isa.design import TPU_V1, Design
    from anytpu.chip.loading import assemble, load

__all__ = ["TPU_V1", "ChipProgram", "Design", "assemble", "compile", "load"]

_HOMES = {
    "TPU_V1": "isa.design",
    "ChipProgram": "chip_program",
    "Design": "isa.design",
    "assemble": "loading",
    "compile": "compilation",
    "load": "loading",
}


def __getattr__(name: str) -> object:
    # Loaded on first use, because the instruction set alone needs neither JAX nor Keras.
    if name not in _HOMES:
        raise AttributeError(f"anytpu.chip has no name {name!r}; it has {', '.join(__all__)}.")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
