"""`numbered_repeats_of`: the equal blocks of a model whose configuration has only their number, as in KerasHub.

Idea: such a configuration has an integer like `num_layers`, the number of the model's layers of one class. From a
smaller integer the same class makes a shallower model.

Rule: layers of a period, such as five with local attention and one with global, are one block. Blocks are removed from
the end. LoRA adapters and `trainable` are no part of the configuration, and are set again.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

from anytpu import _keras
from anytpu.errors import ProgramError
from anytpu.program.makers import Repeats
from anytpu.train.repeats import comparable, made_again

_WORDS = ("layer", "block", "depth")
"""A setting with one of these words in its name, and the right value, is the number of layers."""


def numbered_repeats_of(model: Any) -> Repeats | None:
    """Return the equal blocks of a model whose configuration counts its layers, or None if it has none.

    Raises:
        ProgramError: (by `with_count`) the model cannot be made again from its configuration.
    """
    try:
        numbered = _numbered_layers_of(model)
    except Exception:  # A layer of the user's own without a configuration.
        return None
    if numbered is None:
        return None

    def with_count(count: int) -> Any:
        return made_again(model, f"{count} of its equal blocks", lambda: _shallower(model, numbered, count))

    return Repeats(numbered.blocks, with_count, numbered.period)


@dataclasses.dataclass(frozen=True)
class _NumberedLayers:
    """The layers of one class that a setting counts.

    Attributes:
        path: names of the setting in the nested configuration.
        layers: the layers, in order of execution.
        period: number of layers in a block. Layers at the end that fill no block are in none.
    """

    path: tuple[str, ...]
    layers: tuple[Any, ...]
    period: int

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.layers) // self.period


def _numbered_layers_of(model: Any) -> _NumberedLayers | None:
    paths = {value: path for path, value in _counts(model.get_config())}
    groups = []
    for owner in _keras.layers_of(model):
        by_class: dict[type, list[Any]] = {}
        for layer in getattr(owner, "layers", ()):
            by_class.setdefault(type(layer), []).append(layer)
        groups += [layers for layers in by_class.values() if len(layers) in paths and len(layers) > 1]
    if not groups:
        return None
    layers = max(groups, key=lambda group: len(group) * len(_keras.layers_of(group[0])))
    period = _period([comparable(layer.get_config()) for layer in layers])
    if period > len(layers) // 2:
        return None
    return _NumberedLayers(paths[len(layers)], tuple(layers), period)


def _counts(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the path and the value of each setting of a nested configuration that may be a number of layers."""
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _counts(value, (*path, name))
        elif type(value) is int and any(word in name for word in _WORDS):
            yield (*path, name), value


def _period(kinds: list[Any]) -> int:
    """Return the smallest distance at which all layers are equal; their number if there is none.

    Example:
        >>> _period(["local", "local", "global", "local", "local", "global", "local"])
        3
    """
    distances = range(1, len(kinds))
    return next((step for step in distances if kinds[step:] == kinds[: len(kinds) - step]), len(kinds))


def _shallower(model: Any, numbered: _NumberedLayers, blocks: int) -> Any:
    """Return the model with so many blocks, not compiled.

    Raises:
        ProgramError: the new model is not a part of the model.
    """
    # 1. Make it with the smaller number.
    number = len(numbered.layers) - (numbered.blocks - blocks) * numbered.period
    config = copy.deepcopy(model.get_config())
    *parents, name = numbered.path
    settings = config
    for parent in parents:
        settings = settings[parent]
    settings[name] = number
    smaller = type(model).from_config(config)
    if model.built and not smaller.built:
        smaller.build_from_config(model.get_build_config())
    # 2. Pair its layers with those of the model: Keras lists both in the same order.
    removed = {id(layer) for block in numbered.layers[number:] for layer in _keras.layers_of(block)}
    kept = [layer for layer in _keras.layers_of(model) if id(layer) not in removed]
    remade = _keras.layers_of(smaller)
    if [type(layer) for layer in kept] != [type(layer) for layer in remade]:
        raise ProgramError(f"with {name}={number} it has other layers")
    # 3. Set again what is no part of the configuration.
    for layer, like in zip(remade, kept, strict=True):
        if getattr(like, "lora_enabled", False):
            layer.enable_lora(like.lora_rank)
    for layer, like in zip(remade, kept, strict=True):
        if not _keras.layers_of(layer)[1:] and layer.trainable != like.trainable:
            layer.trainable = like.trainable
    return smaller
