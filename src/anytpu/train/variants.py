"""A Keras model with one change that lowers the memory of its training step: gradient accumulation, or LoRA.

Rule: the model does not change. A variant has shapes and no values for each variable that it does not share.
"""

from __future__ import annotations

from typing import Any

from anytpu import _keras
from anytpu.errors import ProgramError
from anytpu.train import clones
from anytpu.train.repeats import made_again


def accumulating(model: Any, steps: int) -> Any:
    """Return a model that shares the layers of a compiled model, and updates its weights once in so many steps.

    Raises:
        ProgramError: its optimizer accumulates already, or cannot be made again.
    """
    if getattr(model.optimizer, "gradient_accumulation_steps", None):
        raise ProgramError(
            f"its optimizer has gradient_accumulation_steps={model.optimizer.gradient_accumulation_steps} already"
        )
    copy = _keras.shallow_copy(model)
    try:
        settings, optimizer = clones.settings_of(model), type(model.optimizer)
        config = {**model.optimizer.get_config(), "gradient_accumulation_steps": steps}
        with _keras.without_values():
            _keras.compile_plainly(copy, {**settings, "optimizer": optimizer.from_config(config)})
    except Exception as error:
        raise ProgramError(f"its optimizer cannot be made again: {clones.reason(error)}") from error
    return copy


def with_lora(model: Any, rank: int) -> Any:
    """Return a model made again with LoRA adapters of a rank, which alone are trained.

    The backbone of a model of KerasHub chooses its layers. Else each Dense, EinsumDense and Embedding layer gets one.

    Raises:
        ProgramError: it has adapters already, or no layer for them, or cannot be made again.
    """
    layers = _keras.layers_of(model)
    if any(getattr(layer, "lora_enabled", False) for layer in layers):
        raise ProgramError("it has LoRA adapters already")
    if not any(hasattr(layer, "enable_lora") for layer in layers):
        raise ProgramError("it has no Dense, EinsumDense or Embedding layer")

    def make() -> Any:
        copy = type(model).from_config(model.get_config())
        clones.build_like(copy, model)
        backbone = getattr(copy, "backbone", None)
        if backbone is not None and hasattr(backbone, "enable_lora"):
            backbone.enable_lora(rank)
            return copy
        _freeze(copy)
        for layer in _keras.layers_of(copy):
            if hasattr(layer, "enable_lora") and layer.built:
                layer.enable_lora(rank)
        return copy

    return made_again(model, "LoRA adapters", make)


def _freeze(model: Any) -> None:
    """Freeze each weight, and leave the layers trainable: adapters of a frozen layer would be frozen."""
    for variable in model.trainable_variables:
        variable.trainable = False
