"""A copy of a Keras model with its own variables: its layers, what it was compiled with, and every value.

Idea: a model is its layers, its optimizer, and the numbers in their variables: weights, statistics, the states of
random generators, optimizer slots and the step. Copied together, the copy trains on as the original would have.

Rule: nothing is shared but what has no state (losses and functions); the original is read, never written.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from anytpu import _keras
from anytpu.errors import SettingError


def clone(model: Any, cls: type) -> Any:
    """Return a new model with the same layers and the same values, not compiled.

    Args:
        model: a Sequential or functional model, or one whose class has `get_config()`; built or not.
        cls: the class of the new one: that of the model, or the one that it was derived from.

    Raises:
        SettingError: its class cannot be made again from its configuration.
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
    """Copy weights, statistics and the states of random generators from one model to another of the same layers.

    A target that is not built is built like the source.

    Raises:
        SettingError: the two models do not have the same variables.
    """
    if not source.built:
        return
    build_like(target, source)
    given, taken = (variables_of(model) for model in (source, target))
    if [one.shape for one in given] != [one.shape for one in taken]:
        raise SettingError(_cannot(source, f"it has {len(given)} variables and its copy {len(taken)}, of other shapes"))
    _assign(given, taken)
    for layer in _keras.layers_of(target):
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()


def settings_of(model: Any) -> dict[str, Any]:
    """Return what a model was compiled with, to be passed to another's `compile`: metrics and optimizer are new.

    The optimizer has no slots yet; see `copy_optimizer`.
    """
    settings = dict(_keras.compiled_with(model))
    if settings["steps_per_execution"] == 1:
        # What was compiled without it reads 1, Keras's default.
        del settings["steps_per_execution"]
    settings["optimizer"] = _made_again(model.optimizer)
    for name in ("metrics", "weighted_metrics"):
        settings[name] = keras.tree.map_structure(_made_again_if_metric, settings[name])
    return settings


def copy_optimizer(source: Any, target: Any) -> None:
    """Copy the optimizer's slots, step and learning rate from one compiled model to another of the same layers."""
    given, taken = source.optimizer, target.optimizer
    if given is None or taken is None:
        return
    if given.built and not taken.built:
        places = {id(variable): place for place, variable in enumerate(variables_of(source))}
        variables = variables_of(target)
        taken.build([variables[places[id(one)]] for one in _keras.optimized_variables(given)])
    _assign(given.variables, taken.variables)


def _same_layers(model: Any, cls: type) -> Any:
    if _keras.is_graph(model):
        with _keras.uncompiled(model):
            copy = keras.models.clone_model(model)
        if type(copy) in (type(model), cls):
            # Keras's own state in a model does not depend on the class that it is of.
            object.__setattr__(copy, "__class__", cls)
            return copy
    return cls.from_config(model.get_config())


def build_like(model: Any, other: Any) -> None:
    """Build a model for the shapes that another was built for, with the same layers trainable."""
    if other.built and not model.built:
        model.build_from_config(other.get_build_config())
    for layer, like in zip(_keras.layers_of(model), _keras.layers_of(other), strict=True):
        if layer.trainable != like.trainable:
            layer.trainable = like.trainable


def variables_of(model: Any) -> list[Any]:
    """Return the variables of a model but for those of its metrics, which every fit starts at zero."""
    metrics = {id(variable) for variable in model.metrics_variables}
    return [variable for variable in model.variables if id(variable) not in metrics]


def _assign(given: list[Any], taken: list[Any]) -> None:
    for one, other in zip(given, taken, strict=True):
        # A copy: a call on the cores consumes the arrays that it is handed.
        other.assign(np.array(one.value))


def _made_again(one: Any) -> Any:
    return None if one is None else type(one).from_config(one.get_config())


def _made_again_if_metric(one: Any) -> Any:
    return _made_again(one) if isinstance(one, keras.Metric) else one


def reason(error: Exception) -> str:
    """Return the first paragraph of what an error says, in one line."""
    return " ".join(str(error).strip().split("\n\n")[0].split()).rstrip(".") or repr(error)


def _cannot(model: Any, why: str) -> str:
    return (
        f"the model {model.name!r} cannot be copied to the TPU: {why}. Give {type(model).__name__} a get_config() and "
        "a from_config(), or make it on the TPU from the start: with tpu.connect().scope(): model = ...; "
        "model.compile(...)"
    )
