"""`keras_rs.layers.DistributedEmbedding` in the scope of a strategy: tables that are split, with sparse updates.

Idea: without SparseCores keras-rs looks tables up with dense Embedding layers. The optimizer of the model trains them,
not that of the `TableConfig`. In a scope, tables of the placement "auto" become `StackedTables`.

Rule: outside of a scope, and for the placements "default_device" and "sparsecore", keras-rs is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import keras

from anytpu import _keras
from anytpu.embedding.configs import TableConfig
from anytpu.embedding.stacked_tables import stacks_of
from anytpu.strategy.current import CURRENT

_TABLES = "_anytpu_tables"
_STACKS = "_anytpu_stacks"


def install() -> None:
    """Wrap the methods of keras-rs that make tables on the default device and look them up."""
    from keras_rs.src.layers.embedding import base_distributed_embedding  # pyright: ignore[reportMissingImports]

    layer = base_distributed_embedding.DistributedEmbedding
    for name, make in _WRAPPERS.items():
        _keras.wrap(layer, name, make, by="tables")


def _init(original: Callable) -> Callable:
    def wrapper(self: Any, feature_configs: dict[str, Any], table_stacking: Any) -> None:
        in_scope = feature_configs if CURRENT.get() is not None else {}
        ours = {path: config for path, config in in_scope.items() if config.table.placement == "auto"}
        others = {path: config for path, config in feature_configs.items() if path not in ours}
        if ours:
            distinct = {id(config.table): _converted(config.table) for config in ours.values()}
            vars(self)[_TABLES] = {path: distinct[id(config.table)] for path, config in ours.items()}
            setattr(self, _STACKS, stacks_of(list(distinct.values()), "adam"))
            for stack in getattr(self, _STACKS):
                stack.build()
        original(self, others, table_stacking)

    return wrapper


def _converted(table: Any) -> TableConfig:
    """Return the table of keras-rs as ours."""
    optimizer = table.optimizer
    if not isinstance(optimizer, str):
        optimizer = type(optimizer).from_config(optimizer.get_config())
    size, width = table.vocabulary_size, table.embedding_dim
    return TableConfig(size, width, table.initializer, optimizer, table.combiner, table.name)


def _build(original: Callable) -> Callable:
    def wrapper(self: Any, input_shapes: dict[str, Any]) -> None:
        original(self, {path: shape for path, shape in input_shapes.items() if path not in _tables(self)})

    return wrapper


def _call(original: Callable) -> Callable:
    def wrapper(self: Any, inputs: dict[str, Any], weights: Any = None, training: bool = False) -> dict[str, Any]:
        ours = {path: ids for path, ids in inputs.items() if path in _tables(self)}
        others = {path: ids for path, ids in inputs.items() if path not in ours}
        rest = None if weights is None else {path: weights[path] for path in others}
        results = original(self, others, rest, training) if others else {}
        embeddings = _looked_up(self, ours, weights)
        return {path: embeddings[path] if path in embeddings else results[path] for path in inputs}

    return wrapper


def _looked_up(layer: Any, inputs: dict[str, Any], weights: Any) -> dict[str, Any]:
    """Return the combined embeddings of each feature in our tables, by its path."""
    tables, results = _tables(layer), {}
    for stack in getattr(layer, _STACKS, ()):
        members = [path for path in inputs if stack.has(tables[path])]
        arrays = [jnp.asarray(keras.ops.convert_to_tensor(inputs[path])) for path in members]
        # keras-rs fills ragged rows up with id 0 of weight 0.
        bags = [
            stack.bags(tables[path], ids, weights and weights[path], tables[path].combiner)
            for path, ids in zip(members, arrays, strict=True)
        ]
        results.update(zip(members, stack.look_up(bags, True) if members else [], strict=True))
    return results


def _read(original: Callable) -> Callable:
    def wrapper(self: Any) -> dict[Any, Any]:
        ours = {id(table): table for table in _tables(self).values()}.values()
        stacks = getattr(self, _STACKS, ())
        read = {table.name: stack.rows_of(table) for table in ours for stack in stacks if stack.has(table)}
        # Features of ours are not among keras-rs's own layers.
        features = self._placement_to_path_to_feature_config
        before = features["default_device"]
        features["default_device"] = {path: config for path, config in before.items() if path not in _tables(self)}
        try:
            return {**original(self), **read}
        finally:
            features["default_device"] = before

    return wrapper


def _tables(layer: Any) -> dict[str, TableConfig]:
    return vars(layer).get(_TABLES, {})


_WRAPPERS = {
    "_default_device_init": _init,
    "_default_device_build": _build,
    "_default_device_call": _call,
    "_default_device_get_embedding_tables": _read,
}
