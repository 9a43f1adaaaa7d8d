"""`run_of`, `cut`: equal blocks of layers in the configuration of a Keras model, and the configuration with fewer.

Idea: the configuration of a Sequential or functional model lists its layers in the order of their execution, and says
of each where its inputs come from. Two layers are alike if all but their names and seeds is equal, the shapes of their
inputs too, and their inputs come from as many layers back, or from the same layer.

Rule: blocks are left out only where nothing behind them uses any but the last one.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

Config = dict[str, Any]
"""What `get_config` of a model returns, or a part of it."""

_TENSOR = "__keras_tensor__"
_OWN = ("name", "seed", "inbound_nodes")


@dataclasses.dataclass(frozen=True)
class Run:
    """Equal blocks in a list of layers.

    Attributes:
        start: the place of the first layer of the first block.
        period: layers of a block.
        count: how many blocks there are.
    """

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The place behind the last block."""
        return self.start + self.period * self.count


def graphs(config: Config) -> Iterator[Config]:
    """Yield a configuration, if it has layers, and those of the models inside of it."""
    if isinstance(config.get("layers"), list):
        yield config
        for layer in config["layers"]:
            inner = layer.get("config") if isinstance(layer, dict) else None
            if isinstance(inner, dict):
                yield from graphs(inner)


def run_of(config: Config) -> Run | None:
    """Return the equal blocks that hold most layers, or None where no block is repeated.

    Example:
        >>> layers = [{"class_name": "Dense", "config": {"units": 8, "name": f"d{n}"}} for n in range(4)]
        >>> run_of({"layers": layers})
        Run(start=0, period=1, count=4)
    """
    layers, sources = config["layers"], _sources(config)
    kinds = [json.dumps(_kind(layer), sort_keys=True, default=str) for layer in layers]
    best = None
    for period in range(1, len(layers) // 2 + 1):
        for longest_run in _runs(kinds, sources, period):
            run = _free(sources, longest_run)
            if run.count > 1 and (best is None or run.period * run.count > best.period * best.count):
                best = run
    return best


def cut(config: Config, run: Run, count: int) -> None:
    """Leave out all but the first `count` blocks of a configuration, in place."""
    layers = config["layers"]
    kept = layers[run.start : run.start + run.period * count]
    last = layers[run.end - run.period : run.end]
    if "input_layers" in config:
        names = {old["name"]: new["name"] for old, new in zip(last, kept[-run.period :], strict=True)}
        for layer in layers[run.end :]:
            _rename(layer["inbound_nodes"], names)
        config["output_layers"] = _renamed(config["output_layers"], names)
    config["layers"] = [*layers[: run.start], *kept, *layers[run.end :]]


def _runs(kinds: list[str], sources: list[tuple[int, ...]], period: int) -> Iterator[Run]:
    """Yield each stretch of blocks of a length in which every layer is like the one a block before it."""
    start, length = 0, 0
    for place in range(period, len(kinds) + 1):
        is_like = place < len(kinds) and _is_like(kinds, sources, place, period, start)
        if is_like:
            length += 1
            continue
        if length >= period:
            yield Run(start, period, 1 + length // period)
        start, length = place - period + 1, 0


def _is_like(kinds: list[str], sources: list[tuple[int, ...]], place: int, period: int, start: int) -> bool:
    before = place - period
    if kinds[place] != kinds[before] or len(sources[place]) != len(sources[before]):
        return False
    pairs = zip(sources[before], sources[place], strict=True)
    return all(now - then == period or (now == then and now < start) for then, now in pairs)


def _free(sources: list[tuple[int, ...]], run: Run) -> Run:
    """Return the blocks behind the last one, but for the very last, whose results something behind them uses."""
    inside = range(run.start, run.end - run.period)
    used = [
        (source - run.start) // run.period + 1 for behind in sources[run.end :] for source in behind if source in inside
    ]
    skipped = max(used, default=0)
    return Run(run.start + skipped * run.period, run.period, run.count - skipped)


def _sources(config: Config) -> list[tuple[int, ...]]:
    """Return the places that the inputs of each layer come from; last, those that the outputs come from."""
    layers = config["layers"]
    if "input_layers" not in config:
        return [*((place - 1,) for place in range(len(layers))), (len(layers) - 1,)]
    places = {layer["name"]: place for place, layer in enumerate(layers)}
    sources = [tuple(places[name] for name in _names(layer["inbound_nodes"])) for layer in layers]
    return [*sources, tuple(places[name] for name in _strings(config["output_layers"]) if name in places)]


def _kind(layer: Any) -> Any:
    """Return what has to be equal of two layers: all but their names, seeds and where their inputs come from."""
    if isinstance(layer, list | tuple):
        return [_kind(one) for one in layer]
    if not isinstance(layer, dict):
        return layer
    if layer.get("class_name") == _TENSOR:
        return {name: value for name, value in layer["config"].items() if name != "keras_history"}
    kept = {name: _kind(value) for name, value in layer.items() if name not in _OWN}
    nodes = layer.get("inbound_nodes", ())
    # A layer that is called twice is of no block: its name makes it like no other.
    return kept | {"calls": _kind(nodes), "shared": layer["name"] if len(nodes) > 1 else ""} if nodes else kept


def _names(value: Any) -> Iterator[str]:
    """Yield the names of the layers whose results stand in the arguments of a call."""
    if isinstance(value, dict) and value.get("class_name") == _TENSOR:
        yield value["config"]["keras_history"][0]
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _names(one)


def _rename(value: Any, names: dict[str, str]) -> None:
    if isinstance(value, dict) and value.get("class_name") == _TENSOR:
        history = value["config"]["keras_history"]
        value["config"]["keras_history"] = [names.get(history[0], history[0]), *history[1:]]
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            _rename(one, names)


def _renamed(outputs: Any, names: dict[str, str]) -> Any:
    if isinstance(outputs, str):
        return names.get(outputs, outputs)
    if isinstance(outputs, dict):
        return {key: _renamed(one, names) for key, one in outputs.items()}
    return [_renamed(one, names) for one in outputs] if isinstance(outputs, list | tuple) else outputs


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)


def shallower(config: Config, count: int) -> Config | None:
    """Return a configuration with so many of its blocks, where a model or one inside of it repeats some; else None."""
    copied = copy.deepcopy(config)
    found = longest(copied)
    if found is None:
        return None
    cut(*found, count)
    return copied


def longest(config: Config) -> tuple[Config, Run] | None:
    """Return the graph, of a configuration and those inside of it, whose blocks hold most layers, and the blocks."""
    runs = [(graph, run) for graph in graphs(config) if (run := run_of(graph)) is not None]
    return max(runs, key=lambda found: found[1].period * found[1].count, default=None)
