"""`load_weights`: set a model's weights to those of a checkpoint, all or none.

Rule: a model's names are made as the run made them, so a model that is built alike fits. Automatic numbers restart
within the object that a custom loop saved.
"""

from __future__ import annotations

from typing import Any

from anytpu import _keras
from anytpu.errors import FileError, SettingError
from anytpu.train.checkpoint import Checkpoint, Restored, maker_of
from anytpu.train.checkpoint.weights import is_seed, weight_names
from anytpu.train.variable_names import named_variables, renumbered
from anytpu.train.variable_values import assign


def load_weights(model: Any, checkpoint: Checkpoint, name: str | None) -> None:
    """Set the weights of a built model.

    Args:
        model: a Keras model.
        checkpoint: the checkpoint of a fit or a custom loop.
        name: the name that a custom loop gave to the model; None if it had one.

    Raises:
        SettingError: the model is not built, or the name is needed or unknown.
        FileError: the weights do not fit. Nothing is assigned.
    """
    maker = maker_of(checkpoint.host)
    if maker == "TPUEstimator":
        raise FileError(
            f"the checkpoint {checkpoint.where!r} was made by TPUEstimator, whose variables have the names of its "
            f"model_fn. {_export(checkpoint)}"
        )
    if not model.built or not model.variables:
        raise SettingError(f"the model {model.name!r} has no weights yet: build it first, for example with build(...)")
    owners = _keras.layers_of(model)
    values = {path: checkpoint.values[path] for path in weight_names(checkpoint)}
    if maker == "fit":
        groups = {"trainable": model.trainable_variables, "non_trainable": model.non_trainable_variables}
    else:
        name = _object_name(checkpoint, name)
        groups = {name: model.variables}
        inside = {path: value for path, value in values.items() if path.partition("/")[0] == name}
        values = dict(zip(renumbered(inside, owners), inside.values(), strict=True))
    named = {path: v for path, v in named_variables(groups, owners).items() if not is_seed(path)}
    read = Restored(checkpoint.step, values, {}, checkpoint.where)
    assign(named, read, f"the model {model.name!r}")


def _object_name(checkpoint: Checkpoint, name: str | None) -> str:
    """Return the name of an object with trained weights, in the checkpoint of a custom loop."""
    models = sorted({path.partition("/")[0] for path in weight_names(checkpoint) if checkpoint.forms[path].is_trained})
    if name in models or (name is None and len(models) == 1):
        return name or models[0]
    if not models:
        raise FileError(f"the checkpoint {checkpoint.where!r} has no weights of a Keras model. {_export(checkpoint)}")
    raise SettingError(
        f"name must be one of {', '.join(map(repr, models))}, the models in the checkpoint {checkpoint.where!r}, "
        f"not {name!r}"
    )


def _export(checkpoint: Checkpoint) -> str:
    return f"Read its arrays with `anytpu checkpoints {checkpoint.folder} --export weights.safetensors`"
