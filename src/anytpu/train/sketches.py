"""A sketch of a Keras model: what a step of it is traced with, so that the model itself stays as it was.

Idea: to trace a training step, metrics must have been built for some labels and the optimizer must have its slots. A
model that was only planned has neither afterwards: its `fit` may bring other labels, and slots take memory. So a twin
is built in its place, which shares the model's layers; for another precision it is a model made again from the
configuration, with another dtype policy in each layer.

Rule: variables that a sketch makes have shapes and no values. Nothing is copied from the model.
"""

from __future__ import annotations

from typing import Any

import keras

from anytpu import _keras
from anytpu.errors import ProgramError
from anytpu.program.program import Tree
from anytpu.train import clones

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
"""What Keras calls the dtype policy of each precision."""

_FLOAT_POLICIES = ("float32", "mixed_bfloat16", "bfloat16", "mixed_float16", "float16")


def sketch_of(model: Any, batch: Tree) -> Any:
    """Return a model that shares the layers of a compiled one and is built to be trained with a batch.

    A model that cannot be sketched (what it was compiled with cannot be made again) is built itself.

    Args:
        model: a built and compiled model.
        batch: specs of the batch, `(x, y)`, with the weights of the rows behind them or without.
    """
    try:
        settings = clones.settings_of(model)
    except Exception:
        # An optimizer or a metric of the user's without a configuration.
        model._symbolic_build(data_batch=batch)
        return model
    sketch = _keras.shallow_copy(model)
    with _keras.without_values():
        _keras.compile_plainly(sketch, settings)
        sketch._symbolic_build(data_batch=batch)
    return sketch


def in_precision(model: Any, precision: str) -> Any:
    """Return a model of the same layers that computes in a precision, compiled if the model is.

    Args:
        model: a model that can be made again from its configuration, built or not.
        precision: "float32" or "bfloat16".

    Raises:
        ProgramError: it cannot be made again.
    """
    policy = POLICIES[precision]
    if _is_in(model, policy):
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


def _is_in(model: Any, policy: str) -> bool:
    """Say whether a model has a policy already: a mixed one leaves single layers, such as the last, in float32."""
    layers = [layer for layer in _keras.layers_of(model) if not isinstance(layer, keras.layers.InputLayer)]
    policies = {layer.dtype_policy.name for layer in layers}
    return policies == {policy} or (policy != "float32" and policy in policies)


def _with_policy(config: Any, policy: str) -> Any:
    """Return a configuration with another dtype policy wherever it has one that computes in floating point."""
    if isinstance(config, list | tuple):
        return type(config)(_with_policy(one, policy) for one in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy" and config.get("config", {}).get("name") in _FLOAT_POLICIES:
        return {**config, "config": {**config["config"], "name": policy}}
    return {name: _with_policy(one, policy) for name, one in config.items()}


def _cannot(model: Any, precision: str, why: str) -> str:
    return (
        f"the model {model.name!r} cannot be made again in {precision}: {why}. Make it so yourself, with "
        f'keras.config.set_dtype_policy("{POLICIES[precision]}") before it is made, and leave precision out'
    )
