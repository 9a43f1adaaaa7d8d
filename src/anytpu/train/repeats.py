"""`repeats_of`: find the equal blocks of a Keras model, and make the model again with another number of them.

Idea: the configuration of a Sequential or functional model lists its layers in execution order, each with the sources
of its inputs. Two layers are equal if their configurations match except for names and seeds, including input shapes.
Their inputs must also come from the same relative distance, or from the same layer.

Rule: the model does not change. The new model has shapes and no values, and is compiled like the model. Blocks are
removed only if later layers use nothing but the output of the last block.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax
import keras

from anytpu import _keras
from anytpu.errors import ProgramError
from anytpu.program.makers import Repeats
from anytpu.train import clones

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
    if count_layers(graph["layers"][run.start : run.end]) < MIN_SHARE * count_layers(config["layers"]):
        return None
    return Repeats(run.count, lambda count: _with_count(model, config, count))


def _with_count(model: Any, config: dict[str, Any], count: int) -> Any:
    return made_again(model, f"{count} of its equal blocks", lambda: type(model).from_config(shallower(config, count)))


def made_again(model: Any, change: str, make: Callable[[], Any]) -> Any:
    """Return a model that `make` makes of shapes, compiled like another model.

    Args:
        model: the model.
        change: the difference of the new model, for the error: "LoRA adapters".
        make: makes the new model.

    Raises:
        ProgramError: `make` fails.
    """
    user_classes = {type(layer).__name__: type(layer) for layer in _keras.layers_of(model)}
    user_classes = {name: cls for name, cls in user_classes.items() if not cls.__module__.startswith("keras.")}
    try:
        settings = clones.settings_of(model) if model.compiled else None
        with _keras.without_values(), keras.saving.custom_object_scope(user_classes):
            smaller = make()
            if settings is not None:
                _keras.compile_plainly(smaller, settings)
    except Exception as error:
        raise ProgramError(
            f"the model {model.name!r} cannot be made again with {change}: {clones.reason(error)}"
        ) from error
    return smaller


Config = dict[str, Any]
"""The result of a model's `get_config`, or a part of it."""

_TENSOR = "__keras_tensor__"
_IGNORED_KEYS = ("name", "seed", "inbound_nodes")


@dataclasses.dataclass(frozen=True)
class BlockRun:
    """Consecutive equal blocks in a list of layers.

    Attributes:
        start: index of the first layer of the first block.
        period: number of layers in a block, at least 1.
        count: number of blocks.
    """

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """Index of the layer after the last block."""
        return self.start + self.period * self.count


def graphs(config: Config) -> Iterator[Config]:
    """Yield a configuration, if it has layers, and the configurations of the models nested in it."""
    if isinstance(config.get("layers"), list):
        yield config
        for layer in config["layers"]:
            inner = layer.get("config") if isinstance(layer, dict) else None
            if isinstance(inner, dict):
                yield from graphs(inner)


def run_of(config: Config) -> BlockRun | None:
    """Return the equal blocks that hold the most layers, or None if no block is repeated.

    Example:
        >>> layers = [{"class_name": "Dense", "config": {"units": 8, "name": f"d{n}"}} for n in range(4)]
        >>> run_of({"layers": layers})
        BlockRun(start=0, period=1, count=4)
    """
    layers, sources = config["layers"], sources_of(config)
    kinds = [json.dumps(comparable(layer), sort_keys=True, default=str) for layer in layers]
    best = None
    for period in range(1, len(layers) // 2 + 1):
        for longest_run in _runs(kinds, sources, period):
            run = _removable(sources, longest_run)
            # Of runs with as many layers the one with the shortest period stays.
            if run.count > 1 and (best is None or run.period * run.count > best.period * best.count):
                best = run
    return best


def cut(config: Config, run: BlockRun, count: int) -> None:
    """Remove all but the first `count` blocks of a configuration, in place."""
    layers = config["layers"]
    kept = layers[run.start : run.start + run.period * count]
    last = layers[run.end - run.period : run.end]
    if "input_layers" in config:
        # The layers after the blocks get the output of the last kept block in place of that of the last block.
        names = {old["name"]: new["name"] for old, new in zip(last, kept[-run.period :], strict=True)}
        for layer in layers[run.end :]:
            _rename(layer["inbound_nodes"], names)
        config["output_layers"] = jax.tree.map(
            lambda leaf: names.get(leaf, leaf) if isinstance(leaf, str) else leaf, config["output_layers"]
        )
    config["layers"] = [*layers[: run.start], *kept, *layers[run.end :]]


def _runs(kinds: list[str], sources: list[tuple[int, ...]], period: int) -> Iterator[BlockRun]:
    """Yield each run of blocks of `period` layers in which every layer equals the layer one block earlier."""
    start, length = 0, 0
    for index in range(period, len(kinds) + 1):
        is_equal = index < len(kinds) and _is_equal(kinds, sources, index, period, start)
        if is_equal:
            length += 1
            continue
        # There is one block more than the layers that equal those of the block before them fill.
        if length >= period:
            yield BlockRun(start, period, 1 + length // period)
        start, length = index - period + 1, 0


def _is_equal(kinds: list[str], sources: list[tuple[int, ...]], index: int, period: int, start: int) -> bool:
    previous = index - period
    if kinds[index] != kinds[previous] or len(sources[index]) != len(sources[previous]):
        return False
    pairs = zip(sources[previous], sources[index], strict=True)
    # A source within the run moves along with the block; a source before the run is the same layer.
    return all(source - earlier == period or (source == earlier and source < start) for earlier, source in pairs)


def _removable(sources: list[tuple[int, ...]], run: BlockRun) -> BlockRun:
    """Shorten a run from its start, so that layers after it use the output of no block but the last."""
    inner = range(run.start, run.end - run.period)
    used = [
        (source - run.start) // run.period + 1 for later in sources[run.end :] for source in later if source in inner
    ]
    skipped = max(used, default=0)
    return BlockRun(run.start + skipped * run.period, run.period, run.count - skipped)


def sources_of(config: Config) -> list[tuple[int, ...]]:
    """Return the indices of the source layers of each layer's inputs; the last entry is for the model's outputs."""
    layers = config["layers"]
    if "input_layers" not in config:
        return [*((index - 1,) for index in range(len(layers))), (len(layers) - 1,)]
    indices = {layer["name"]: index for index, layer in enumerate(layers)}
    sources = [tuple(indices[name] for name in _names(layer["inbound_nodes"])) for layer in layers]
    return [*sources, tuple(indices[name] for name in jax.tree.leaves(config["output_layers"]) if name in indices)]


def comparable(layer: Any) -> Any:
    """Return the part of a layer's configuration that equal layers share: all but names, seeds and input sources."""
    if isinstance(layer, list | tuple):
        return [comparable(part) for part in layer]
    if not isinstance(layer, dict):
        return layer
    if _is_tensor(layer):
        return {name: value for name, value in layer["config"].items() if name != "keras_history"}
    kept = {name: comparable(value) for name, value in layer.items() if name not in _IGNORED_KEYS}
    nodes = layer.get("inbound_nodes", ())
    # A layer that is called twice belongs to no block: its name is included, so that it equals no other layer.
    return kept | {"calls": comparable(nodes), "shared": layer["name"] if len(nodes) > 1 else ""} if nodes else kept


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and value.get("class_name") == _TENSOR


def _names(nodes: Any) -> Iterator[str]:
    """Yield the names of the layers whose outputs are arguments of a call."""
    for leaf in jax.tree.leaves(nodes, is_leaf=_is_tensor):
        if _is_tensor(leaf):
            yield leaf["config"]["keras_history"][0]


def _rename(nodes: Any, names: dict[str, str]) -> None:
    for leaf in jax.tree.leaves(nodes, is_leaf=_is_tensor):
        if _is_tensor(leaf):
            first, *rest = leaf["config"]["keras_history"]
            leaf["config"]["keras_history"] = [names.get(first, first), *rest]


def shallower(config: Config, count: int) -> Config | None:
    """Return a configuration with `count` of its equal blocks, or None if neither it nor a nested model has any."""
    copied = copy.deepcopy(config)
    graph_and_run = longest(copied)
    if graph_and_run is None:
        return None
    cut(*graph_and_run, count)
    for graph in graphs(copied):
        if "input_layers" not in graph:
            # A layer that is built before a Sequential adds it has a path without the Sequential's name.
            for layer in graph["layers"]:
                layer.pop("build_config", None)
    return copied


def longest(config: Config) -> tuple[Config, BlockRun] | None:
    """Return the graph whose equal blocks hold the most layers, of a configuration and its nested ones, and the blocks.

    None if no graph has equal blocks.
    """
    runs = [(graph, run) for graph in graphs(config) if (run := run_of(graph)) is not None]
    return max(runs, key=lambda pair: count_layers(pair[0]["layers"][pair[1].start : pair[1].end]), default=None)


def count_layers(layers: list[Any]) -> int:
    """Return the number of layers in a list of configurations, with the layers of nested models."""
    configs = [layer.get("config") if isinstance(layer, dict) else None for layer in layers]
    nested = (graph for config in configs if isinstance(config, dict) for graph in graphs(config))
    return len(layers) + sum(len(graph["layers"]) for graph in nested)
