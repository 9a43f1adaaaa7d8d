"""`shrunk`: a smaller model of the same kind, for a check of a model that is too large for this machine.

Idea: the configuration of a Sequential or functional model lists its layers. Equal blocks are cut to two of them, as in
a plan's extrapolation, and the widths of layers are divided. The layers at the outputs keep their widths, because
the labels have them.

Rule: the model does not change. A model that cannot be made again is refused by name.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import keras

from anytpu import _keras
from anytpu.errors import ProgramError
from anytpu.train import clones
from anytpu.train.repeats import graphs, longest, shallower, sources_of

BLOCKS = 2
"""Number of equal blocks that a smaller model keeps."""

_WIDTHS = ("units", "filters", "key_dim", "value_dim", "output_dim", "intermediate_dim", "hidden_dim")


@dataclasses.dataclass(frozen=True)
class ShrunkModel:
    """A smaller model.

    Attributes:
        model: the model, compiled like the large one, with weights of its own.
        change: a sentence on the changes.
    """

    model: Any
    change: str


def shrunk(model: Any, divisor: int) -> ShrunkModel:
    """Return a smaller model with two of the equal blocks, and with widths divided by a number.

    Args:
        model: a compiled Sequential or functional model.
        divisor: divisor of the widths; 1 keeps them.

    Raises:
        ProgramError: the model is of another kind, has nothing to make smaller, or cannot be made again.
    """
    start = f"shrink={divisor} cannot make {model.name!r} smaller:"
    if not _keras.is_graph(model):
        raise ProgramError(
            f"{start} it is a {type(model).__name__}, and only a Sequential or functional model lists its layers. Make "
            "a smaller one yourself and check it without shrink"
        )
    # 1. Change the configuration: fewer blocks first, then smaller widths.
    config = model.get_config()
    changes = []
    graph_and_run = longest(config)
    if graph_and_run is not None and graph_and_run[1].count > BLOCKS:
        changes.append(f"{BLOCKS} of {graph_and_run[1].count} equal blocks")
        config = shallower(config, BLOCKS) or config
    if divisor > 1 and (count := _narrow(config := copy.deepcopy(config), divisor)):
        changes.append(f"the widths of {count} {'layer' if count == 1 else 'layers'} divided by {divisor}")
    if not changes:
        raise ProgramError(
            f"{start} it has at most {BLOCKS} equal blocks, and no width that {divisor} divides. Check it without "
            "shrink, or give another divisor"
            if divisor > 1
            else f"{start} it has at most {BLOCKS} equal blocks. Divide the widths of its layers: shrink=2"
        )
    # 2. Make the model again. In this scope, `from_config` finds the classes of the user without a registration.
    user_classes = {type(layer).__name__: type(layer) for layer in _keras.layers_of(model)}
    user_classes = {name: cls for name, cls in user_classes.items() if not cls.__module__.startswith("keras.")}
    try:
        with keras.saving.custom_object_scope(user_classes):
            smaller = type(model).from_config(config)
        _keras.compile_plainly(smaller, clones.settings_of(model))
    except Exception as error:
        raise ProgramError(
            f"{start} with {' and '.join(changes)}, {clones.reason(error)}. Make a smaller one yourself and check it "
            "without shrink"
        ) from error
    return ShrunkModel(smaller, f"the compared model is smaller than {model.name!r}: it has {' and '.join(changes)}.")


def _narrow(config: dict[str, Any], divisor: int) -> int:
    """Divide the widths in a configuration, in place, where the divisor divides them. Return the number of layers."""
    count = 0
    for graph in graphs(config):
        kept = _at_outputs(graph) if graph is config else set()
        # Layers are built for the shapes of their new inputs.
        graph.pop("build_input_shape", None)
        for index, layer in enumerate(graph["layers"]):
            layer.pop("build_config", None)
            settings = layer["config"]
            widths = [name for name in _WIDTHS if _is_width(settings.get(name), divisor)]
            if index in kept or not widths:
                continue
            settings.update({name: settings[name] // divisor for name in widths})
            count += 1
    return count


def _is_width(value: Any, divisor: int) -> bool:
    return isinstance(value, int) and value > divisor and value % divisor == 0


def _at_outputs(config: dict[str, Any]) -> set[int]:
    """Return the indices of the last layers with a width on the way to each output."""
    *sources, outputs = sources_of(config)
    kept: set[int] = set()
    seen: set[int] = set()
    pending = list(outputs)
    while pending:
        index = pending.pop()
        if index < 0 or index in seen:
            continue
        seen.add(index)
        if any(isinstance(config["layers"][index]["config"].get(name), int) for name in _WIDTHS):
            kept.add(index)
        else:
            pending += sources[index]
    return kept
