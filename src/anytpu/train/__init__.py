"""The front doors: they make a Keras model, a training step or a TPUEstimator program train on a strategy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anytpu.train.checkpointer import Checkpointer
    from anytpu.train.compiled_models import input_shares, step_logs
    from anytpu.train.model_step import model_step
    from anytpu.train.record import RunRecord

# Each name is imported at first use, so that `program.of` can read the makers in this folder without loading Keras.
_HOMES = {
    "Checkpointer": "checkpointer",
    "RunRecord": "record",
    "input_shares": "compiled_models",
    "model_step": "model_step",
    "step_logs": "compiled_models",
}

__all__ = [
    "Checkpointer",
    "RunRecord",
    "input_shares",
    "model_step",
    "step_logs",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"anytpu.train has no name {name!r}; dir(anytpu.train) lists its names.")
    globals()[name] = value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return list(__all__)
