"""`repeats_of`: find the equal blocks of a Keras model, and make the model again with another number of them.

Rule: the model does not change. The new model has shapes and no values, and is compiled like the model.
"""

from __future__ import annotations

from typing import Any

import keras

from anytpu import _keras
from anytpu.errors import ProgramError
from anytpu.program.repeats import Repeats
from anytpu.train import clones
from anytpu.train.layer_graph import graphs, longest, shallower

MIN_SHARE = 0.5
"""Blocks with a smaller share of a model's layers are ignored: removing some of them saves too little."""


def repeats_of(model: Any) -> Repeats | None:
    """Return the equal blocks that hold the most layers of a Sequential or functional model, or of a nested model.

    Returns:
        The blocks, or None if no block is repeated or the blocks are too small a share of the layers.

    Raises:
        ProgramError: (by `with_count`) the model cannot be made again from its configuration.
    """
    if not _keras.is_graph(model):
        return None
    try:
        config = model.get_config()
        graph_and_run = longest(config)
    except Exception:  # A layer of the user's own without a configuration.
        return None
    if graph_and_run is None:
        return None
    graph, run = graph_and_run
    if run.period * run.count < MIN_SHARE * sum(len(each["layers"]) for each in graphs(config)):
        return None
    block = graph["layers"][run.start : run.start + run.period]
    names = tuple(layer.get("name") or layer["config"]["name"] for layer in block)
    return Repeats(run.count, names, lambda count: _with_count(model, config, count))


def _with_count(model: Any, config: dict[str, Any], count: int) -> Any:
    user_classes = {type(layer).__name__: type(layer) for layer in _keras.layers_of(model)}
    user_classes = {name: cls for name, cls in user_classes.items() if not cls.__module__.startswith("keras.")}
    try:
        settings = clones.settings_of(model) if model.compiled else None
        with _keras.without_values(), keras.saving.custom_object_scope(user_classes):
            smaller = type(model).from_config(shallower(config, count))
            if settings is not None:
                _keras.compile_plainly(smaller, settings)
    except Exception as error:
        raise ProgramError(
            f"the model {model.name!r} cannot be made again with {count} of its equal blocks: {clones.reason(error)}"
        ) from error
    return smaller
