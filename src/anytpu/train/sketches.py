"""Sketches: stand-ins of a Keras model for tracing a step, so that the model itself does not change.

Idea: a training step can be traced once the metrics are built for some labels and the optimizer has its slots. Planning
must leave neither on the model: its `fit` may have other labels, and slots take memory. So a sketch is built, which
shares the model's layers. For another precision, a model is made again from the configuration, with another dtype
policy in each layer.

Rule: variables made for a sketch have shapes and no values. Nothing is copied from the model.
"""

from __future__ import annotations

from typing import Any

import keras

from anytpu import _keras
from anytpu.errors import ProgramError
from anytpu.program.program import Tree
from anytpu.train import clones

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
"""Keras's dtype policy for each precision."""

_FLOAT_POLICIES = ("float32", "mixed_bfloat16", "bfloat16", "mixed_float16", "float16")


def sketch_of(model: Any, batch: Tree) -> Any:
    """Return a model that shares the layers of a compiled model and is built for training on a batch.

    If the compile settings cannot be made again, the model itself is built and returned.

    Args:
        model: a built and compiled model.
        batch: specs of the batch, `(x, y)` or `(x, y, sample_weight)`.
    """
    try:
        settings = clones.settings_of(model)
    except Exception:
        # An optimizer or a metric of the user's own without a configuration.
        model._symbolic_build(data_batch=batch)
        return model
    sketch = _keras.shallow_copy(model)
    with _keras.without_values():
        _keras.compile_plainly(sketch, settings)
        sketch._symbolic_build(data_batch=batch)
    return sketch


def in_precision(model: Any, precision: str) -> Any:
    """Return a model of the same layers that computes in a precision; it is compiled if the model is.

    Args:
        model: a model that can be made again from its configuration, built or not.
        precision: "float32" or "bfloat16".

    Raises:
        ProgramError: the model cannot be made again.
    """
    policy = POLICIES[precision]
    if _has_policy(model, policy):
        return model
    try:
        config = _with_policy(model.get_config(), policy)
        settings = clones.settings_of(model) if model.compiled else None
        with _keras.without_values():
            copy = type(model).from_config(config)
            clones.build_like(copy, model)
            if settings is not None:
                _keras.compile_plainly(copy, settings)
    except Exception as error:
        raise ProgramError(_cannot(model, precision, clones.reason(error))) from error
    if [v.shape for v in clones.variables_of(copy)] != [v.shape for v in clones.variables_of(model)]:
        raise ProgramError(_cannot(model, precision, "its copy has other variables"))
    return copy


def _has_policy(model: Any, policy: str) -> bool:
    """Return whether a model already has a policy; under a mixed policy some layers, such as the last, are float32."""
    layers = [layer for layer in _keras.layers_of(model) if not isinstance(layer, keras.layers.InputLayer)]
    policies = {layer.dtype_policy.name for layer in layers}
    return policies == {policy} or (policy != "float32" and policy in policies)


def _with_policy(config: Any, policy: str) -> Any:
    """Return a configuration with each floating-point dtype policy replaced."""
    if isinstance(config, list | tuple):
        return type(config)(_with_policy(part, policy) for part in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy" and config.get("config", {}).get("name") in _FLOAT_POLICIES:
        return {**config, "config": {**config["config"], "name": policy}}
    return {name: _with_policy(part, policy) for name, part in config.items()}


def _cannot(model: Any, precision: str, why: str) -> str:
    return (
        f"the model {model.name!r} cannot be made again in {precision}: {why}. Choose the precision yourself, with "
        f'keras.config.set_dtype_policy("{POLICIES[precision]}") before it is made, and leave precision out'
    )
