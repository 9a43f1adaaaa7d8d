"""Ids of a batch on the host, checked against the tables that a model looks them up in.

Idea: JAX reads another row for an id outside of an array, without an error. In a graph of layers, the inputs that a
`ShardedEmbedding` reads directly are known, so their ids are checked before they are transferred.

Rule: with `on_bad_id="drop"` a bad id becomes -1 here, before 64-bit integers are cast. Ids that the model computes
itself are not checked here: a bag with a bad one is NaN.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.embedding.layer import ShardedEmbedding
from anytpu.embedding.table_layer import tables_of
from anytpu.errors import DataError


@dataclasses.dataclass(frozen=True)
class _Fed:
    """An input of a model that a table reads.

    Attributes:
        layer: the layer of the table.
        is_weight: whether the input has the weights of ids.
    """

    layer: ShardedEmbedding
    is_weight: bool


def checked_ids(model: Any, x: Any) -> Any:
    """Return the inputs of a model with bad ids replaced by -1, where the layer drops them.

    Args:
        model: a Keras model; only a graph of layers is checked.
        x: the inputs of a batch, or of a data set.

    Raises:
        DataError: an id is outside of its table, or no integer; or the weight of an id is not finite.
    """
    if not tables_of(model):
        return x
    fed = _fed_inputs(model)
    leaves, form = jax.tree.flatten(x)
    names = _names(model, x) if fed else []
    if len(names) != len(leaves):
        # Inputs of a subclassed model, or an error that Keras reports.
        for array in leaves:
            _check_range(array)
        return x
    for place, (name, array) in enumerate(zip(names, leaves, strict=True)):
        if name not in fed:
            _check_range(array)
        for reader in fed.get(name, ()):
            if reader.is_weight:
                _check_weights(name, array)
            else:
                leaves[place] = array = checked_array(f"x[{name!r}]", array, reader.layer)
    return jax.tree.unflatten(form, leaves)


def checked_array(name: str, ids: Any, layer: ShardedEmbedding) -> Any:
    """Return an array of ids for a layer, checked.

    Args:
        name: name of the array for errors.
        ids: the ids.
        layer: the layer that looks them up.

    Raises:
        DataError: an id is outside of the table, or no integer.
    """
    array = np.asarray(ids)
    if not array.size:
        return ids
    if array.dtype.kind == "f":
        is_bad = ~((array >= -1) & (array < layer.input_dim) & (array == np.floor(array)))
    elif array.min() >= -1 and array.max() < layer.input_dim:
        return ids
    else:
        is_bad = (array < -1) | (array >= layer.input_dim)
    if not is_bad.any():
        return ids
    if layer.on_bad_id == "drop":
        return np.where(is_bad, -1, array)
    first = tuple(int(index) for index in np.argwhere(is_bad)[0])
    count = int(is_bad.sum())
    more = f" ({count:,} such ids)" if count > 1 else ""
    raise DataError(
        f"{name}, row {first[0]:,}, has the id {array[first].item():,}{more}, and the table {layer.name!r} has the "
        f'ids 0 to {layer.input_dim - 1:,}; -1 stands for no id. Enlarge input_dim, or pass on_bad_id="drop" to '
        "leave such ids out"
    )


def _check_range(array: Any) -> None:
    """Refuse integers that a cast to 32 bits would turn into other ids."""
    if getattr(array, "dtype", np.dtype("int32")).kind in "iu" and array.dtype.itemsize > 4 and array.size:
        low, high = array.min(), array.max()
        if low < -(2**31) or high >= 2**31:
            raise DataError(
                f"an input has the integer {(high if high >= 2**31 else low).item():,}, which 32 bits do not hold, and "
                "the model has embedding tables: check the ids, or hash them into fewer (tpu.pipeline.hash_ids)"
            )


def _check_weights(name: str, weights: Any) -> None:
    is_bad = ~np.isfinite(np.asarray(weights))
    if is_bad.any():
        first = tuple(int(index) for index in np.argwhere(is_bad)[0])
        raise DataError(
            f"x[{name!r}], row {first[0]:,}, has the weight {np.asarray(weights)[first].item()}: the weight of an id "
            "must be a finite number, and 0 leaves the id out"
        )


def _names(model: Any, x: Any) -> list[str]:
    """Return the name of the input that each leaf of `x` is for."""
    graph: Any = _keras.graph_of(model)
    if isinstance(x, dict):
        tensors = _keras.input_structure(graph)
        names = {key: tensor.name for key, tensor in tensors.items()} if isinstance(tensors, dict) else {}
        return [names.get(key, key) for key in sorted(x)]
    return [tensor.name for tensor in graph.inputs]


def _fed_inputs(model: Any) -> dict[str, list[_Fed]]:
    """Return the inputs that tables read directly, by name."""
    graph = _keras.graph_of(model) if hasattr(model, "layers") else None
    if graph is None:
        return {}
    names = {id(tensor): tensor.name for tensor in graph.inputs}
    fed: dict[str, list[_Fed]] = {}
    for layer, ids, weights in _table_calls(graph):
        for tensors, is_weight in ((ids, False), (weights, True)):
            for tensor in keras.tree.flatten(tensors):
                if id(tensor) in names:
                    fed.setdefault(names[id(tensor)], []).append(_Fed(layer, is_weight))
    return fed


def _table_calls(graph: Any) -> Iterator[tuple[ShardedEmbedding, Any, Any]]:
    """Yield each layer with a table in a graph, with the tensors of its ids and of their weights."""
    for layer in graph.layers:
        if isinstance(layer, ShardedEmbedding):
            for args, kwargs in _keras.arguments_of(layer):
                weights = args[1] if len(args) > 1 else kwargs.get("weights")
                yield layer, args[0] if args else kwargs.get("inputs"), weights
