"""Copies of a Keras model with variables of their own: the layers, the compile settings and every value.

Idea: a model is its layers, its optimizer, and the values of their variables: weights, statistics, the states of
random generators, optimizer slots and the step. With all of these copied, the copy trains on as the original would.

Rule: only objects without state (losses and functions) are shared. The original is read, never written.
"""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np

from anytpu import _keras
from anytpu.errors import SettingError


def clone(model: Any, cls: type) -> Any:
    """Return a new model with the same layers and the same values, not compiled.

    Args:
        model: a Sequential or functional model, or one whose class has `get_config()`; built or not.
        cls: class of the copy: the model's class or its base class.

    Raises:
        SettingError: the model cannot be made again from its configuration.
    """
    try:
        copy = _same_layers(model, cls)
        build_like(copy, model)
    except Exception as error:
        raise SettingError(_cannot(model, reason(error))) from error
    if type(copy) is not cls:
        raise SettingError(_cannot(model, f"its copy is a {type(copy).__name__}, not a {cls.__name__}"))
    copy_values(model, copy)
    return copy


def copy_values(source: Any, target: Any) -> None:
    """Copy weights, statistics and the states of random generators between two models of the same layers.

    An unbuilt target is built like the source first.

    Raises:
        SettingError: the two models do not have the same variables.
    """
    if not source.built:
        return
    build_like(target, source)
    sources, targets = (variables_of(model) for model in (source, target))
    if [variable.shape for variable in sources] != [variable.shape for variable in targets]:
        raise SettingError(
            _cannot(source, f"it has {len(sources)} variables and its copy {len(targets)}, of other shapes")
        )
    _assign(sources, targets)
    for layer in _keras.layers_of(target):
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def settings_of(model: Any) -> dict[str, Any]:
    """Return the arguments that a model was compiled with, for another model's `compile`.

    Metrics and optimizer are new objects. The optimizer has no slots yet; see `copy_optimizer`.
    """
    settings = dict(_keras.compiled_with(model))
    if settings["steps_per_execution"] == 1:
        # A model compiled without steps_per_execution reports 1, Keras's default.
        del settings["steps_per_execution"]
    settings["optimizer"] = _renew(model.optimizer)
    for name in ("metrics", "weighted_metrics"):
        settings[name] = keras.tree.map_structure(_renew_if_metric, settings[name])
    return settings


def copy_optimizer(source: Any, target: Any) -> None:
    """Copy the optimizer's slots, step and learning rate between two compiled models of the same layers."""
    old, new = source.optimizer, target.optimizer
    if old is None or new is None:
        return
    if old.built and not new.built:
        indices = {id(variable): index for index, variable in enumerate(variables_of(source))}
        variables = variables_of(target)
        new.build([variables[indices[id(variable)]] for variable in _keras.optimized_variables(old)])
    _assign(old.variables, new.variables)


def _same_layers(model: Any, cls: type) -> Any:
    if _keras.is_graph(model):
        with _keras.uncompiled(model):
            copy = keras.models.clone_model(model, clone_function=_same_layer)
        if type(copy) in (type(model), cls):
            # Keras's state in a model does not depend on the model's class.
            object.__setattr__(copy, "__class__", cls)
            return copy
    return cls.from_config(model.get_config())


def _same_layer(layer: Any) -> Any:
    """Return a new layer; a `Lambda` shares its function, which has no state and may be one that cannot be saved."""
    if type(layer) is not keras.layers.Lambda:
        return type(layer).from_config(layer.get_config())
    settings = {name: getattr(layer, name) for name in ("mask", "arguments", "name", "dtype_policy", "trainable")}
    settings["dtype"] = settings.pop("dtype_policy")
    return keras.layers.Lambda(layer.function, output_shape=layer.compute_output_shape, **settings)


def build_like(model: Any, other: Any) -> None:
    """Build a model for the input shapes of another, and make the same layers trainable."""
    if other.built and not model.built:
        model.build_from_config(other.get_build_config())
    for layer, like in zip(_keras.layers_of(model), _keras.layers_of(other), strict=True):
        if layer.trainable != like.trainable:
            layer.trainable = like.trainable


def variables_of(model: Any) -> list[Any]:
    """Return the variables of a model without those of its metrics, which every fit resets to zero."""
    metrics = {id(variable) for variable in model.metrics_variables}
    return [variable for variable in model.variables if id(variable) not in metrics]


def _assign(sources: list[Any], targets: list[Any]) -> None:
    for source, target in zip(sources, targets, strict=True):
        # Copied: a call on the cores donates its input arrays.
        target.assign(np.array(source.value))


def _renew(source: Any) -> Any:
    return None if source is None else type(source).from_config(source.get_config())


def _renew_if_metric(value: Any) -> Any:
    return _renew(value) if isinstance(value, keras.Metric) else value


def reason(error: Exception) -> str:
    """Return the first informative paragraph of an error's text, in one line, without the lines that Keras adds."""
    paragraphs = re.sub(r"\x1b\[\d*m", "", str(error)).strip().split("\n\n")
    text = next((text for text in paragraphs if not text.startswith("Exception encountered when calling")), "")
    return " ".join(text.split()).rstrip(".") or repr(error)


def _cannot(model: Any, why: str) -> str:
    return (
        f"the model {model.name!r} cannot be copied to the TPU: {why}. Give {type(model).__name__} a get_config() and "
        "a from_config(), or make it on the TPU from the start: with tpu.connect().scope(): model = ...; "
        "model.compile(...)"
    )
