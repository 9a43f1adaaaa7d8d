"""`repeats_of`: the equal blocks of a Keras model, and the model made again with fewer of them.

Rule: the model stays as it was. What is made again has shapes and no values, and is compiled as the model is.
"""

from __future__ import annotations

from typing import Any

import keras

from anytpu import _keras
from anytpu.errors import ProgramError
from anytpu.program.repeats import Repeats
from anytpu.train import clones
from anytpu.train.layer_graph import graphs, longest, shallower

WORTH_SHARE = 0.5
"""Blocks that hold a smaller share of a model's layers are not worth leaving out."""


def repeats_of(model: Any) -> Repeats | None:
    """Return the equal blocks that hold most layers of a Sequential or functional model, or of one inside of it.

    None where there are none.

    Raises:
        ProgramError: (by `with_count`) the model cannot be made again from its configuration.
    """
    if not _keras.is_graph(model):
        return None
    try:
        config = model.get_config()
        found = longest(config)
    except Exception:  # A layer of the user's without a configuration.
        return None
    if found is None:
        return None
    graph, run = found
    if run.period * run.count < WORTH_SHARE * sum(len(one["layers"]) for one in graphs(config)):
        return None
    block = graph["layers"][run.start : run.start + run.period]
    names = tuple(layer.get("name") or layer["config"]["name"] for layer in block)
    return Repeats(run.count, names, lambda count: _with_count(model, config, count))


def _with_count(model: Any, config: dict[str, Any], count: int) -> Any:
    own = {type(layer).__name__: type(layer) for layer in _keras.layers_of(model)}
    own = {name: cls for name, cls in own.items() if not cls.__module__.startswith("keras.")}
    try:
        settings = clones.settings_of(model) if model.compiled else None
        with _keras.without_values(), keras.saving.custom_object_scope(own):
            made = type(model).from_config(shallower(config, count))
            if settings is not None:
                _keras.compile_plainly(made, settings)
    except Exception as error:
        raise ProgramError(
            f"the model {model.name!r} cannot be made again with {count} of its equal blocks: {clones.reason(error)}"
        ) from error
    return made
