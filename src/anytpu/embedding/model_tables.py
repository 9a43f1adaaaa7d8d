"""`ModelTables`: the tables of a Keras model, and the ids of a batch checked against them on the host.

Idea: JAX reads another row for an id outside of an array, without an error. In a graph of layers, the inputs that a
`ShardedEmbedding` reads directly are known, so their ids are checked before they are transferred.

Rule: with `on_bad_id="drop"` a bad id becomes -1 here, before 64-bit integers are cast. Ids that the model computes
itself are not checked here: a bag with a bad one is NaN. A log line names their table once.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import warnings
import weakref
from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu._calls import users_stacklevel
from anytpu.embedding.id_forms import check_range, refuse_forms, without_bad_ids
from anytpu.embedding.layer import ShardedEmbedding
from anytpu.embedding.table_layer import TableLayer
from anytpu.errors import DataError
from anytpu.pipeline.missing import first_true
from anytpu.strategy import state_extension

LOG = logging.getLogger("anytpu")

_TOLD: weakref.WeakSet[Any] = weakref.WeakSet()
"""The models whose unchecked tables were named, and the layers that a warning about a learning rate has named."""


@dataclasses.dataclass(frozen=True)
class _Fed:
    """An input of a model that a table reads.

    Attributes:
        layer: the layer of the table.
        is_weight: whether the input has the weights of ids.
    """

    layer: ShardedEmbedding
    is_weight: bool


class ModelTables:
    """The tables of one Keras model, its `StateExtension`.

    Args:
        model: a Keras model.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layers = [layer for layer in _keras.layers_of(model) if isinstance(layer, TableLayer)]

    @classmethod
    def of(cls, model: Any) -> ModelTables | None:
        """Return the tables of a model, or None if it has none."""
        found = cls(model)
        return found if found._layers else None

    @property
    def tables(self) -> dict[str, bool]:
        """The paths of the tables and of their slots, and whether each is a slot."""
        return {v.path: index > 0 for layer in self._built for index, v in enumerate(layer.table_variables)}

    @property
    def _built(self) -> list[TableLayer]:
        return [layer for layer in self._layers if layer.built]

    @property
    def nan_hint(self) -> str:
        """A sentence for an error about a loss that is not finite: bad ids of the tables; "" before they are built."""
        if not self._built:
            return ""
        return (
            '. The model has embedding tables: the result for an id outside of a table is NaN, which on_bad_id="drop" '
            "of its layer avoids"
        )

    def check_callbacks(self, callbacks: Any) -> None:
        """Warn if a callback changes the learning rate of the model's optimizer, which the tables do not follow.

        Each table is named once. A table with a schedule, or whose `learning_rate` was assigned, is not.

        Args:
            callbacks: the callbacks of a fit, or None.
        """
        kinds = keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau
        listed = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
        schedulers = [type(each).__name__ for each in listed if isinstance(each, kinds)]
        tables = [repr(layer.name) for layer in self._layers if layer.follows_no_rate and layer not in _TOLD]
        if schedulers and tables:
            _TOLD.update(self._layers)
            names = (
                f"table {tables[0]} has an optimizer of its own, whose rate stays"
                if len(tables) == 1
                else f"tables {', '.join(tables)} have optimizers of their own, whose rates stay"
            )
            warnings.warn(
                f"{schedulers[0]} changes the learning rate of the model's optimizer, and the {names}. Set "
                "layer.learning_rate in a keras.callbacks.LambdaCallback, or give the table's optimizer a schedule",
                stacklevel=users_stacklevel(),
            )

    def checked(self, x: Any, is_batch: bool = False) -> Any:
        """Return the inputs with bad ids replaced by -1, where the layer drops them.

        Args:
            x: the inputs of a batch, or of a data set; only those of graphs of layers, and graphs in them, are checked.
            is_batch: whether rows are those of one batch of several, for errors.

        Raises:
            DataError: an id is outside of its table, or no integer; or the weight of an id is not finite.
        """
        if self._built:
            self._tell_unchecked()
        of_batch = " of this batch" if is_batch else ""
        leaves, form = jax.tree.flatten(x)
        names = _names(self._model, x) if self._fed else []
        if len(names) != len(leaves):
            # Inputs of a subclassed model, or an error that Keras reports.
            for array in leaves:
                check_range("an input", array)
            return x
        for place, (name, array) in enumerate(zip(names, leaves, strict=True)):
            if name not in self._fed:
                check_range("an input", array)
            for reader in self._fed.get(name, ()):
                if reader.is_weight:
                    _check_weights(name, array, of_batch)
                else:
                    layer, shown = reader.layer, f"x[{name!r}]"
                    refuse_forms(shown, array, layer.name)
                    drops = layer.on_bad_id == "drop"
                    array = without_bad_ids(shown, array, layer.input_dim, layer.name, drops, of_batch=of_batch)
                    leaves[place] = array
        return jax.tree.unflatten(form, leaves)

    def check_forms(self, x: Any) -> None:
        """Check that the inputs which tables read are rectangular integers. Data sets are checked by their batches.

        Args:
            x: the inputs: arrays, or lists of rows.

        Raises:
            DataError: an input has strings, or rows of different lengths.
        """
        if not self._fed:
            return
        graph: Any = _keras.graph_of(self._model)
        inputs = len(graph.inputs)
        if isinstance(x, dict):
            values = [x[name] for name in sorted(x)]
        elif inputs == 1:
            values = [x[0] if isinstance(x, list) and len(x) == 1 else x]
        elif isinstance(x, list | tuple) and len(x) == inputs:
            values = list(x)
        else:
            return
        for name, value in zip(_names(self._model, x), values, strict=True):
            for reader in self._fed.get(name, ()):
                if not reader.is_weight:
                    refuse_forms(f"x[{name!r}]", value, reader.layer.name)

    @functools.cached_property
    def _fed(self) -> dict[str, list[_Fed]]:
        """The inputs that tables read directly, by name."""
        return _fed_inputs(self._model)

    def _tell_unchecked(self) -> None:
        """Say once which tables get ids that are not checked on the host."""
        if self._model in _TOLD:
            return
        _TOLD.add(self._model)
        checked = {id(reader.layer) for readers in self._fed.values() for reader in readers if not reader.is_weight}
        layers = [layer for layer in self._layers if isinstance(layer, ShardedEmbedding)]
        names = [repr(layer.name) for layer in layers if layer.on_bad_id == "raise" and id(layer) not in checked]
        if names:
            LOG.warning(
                "The ids of %s are not checked before a step: no input of %r goes straight there. The result for an id "
                "outside of the table is NaN.",
                ", ".join(names),
                self._model.name,
            )


def _check_weights(name: str, weights: Any, of_batch: str) -> None:
    is_bad = ~np.isfinite(np.asarray(weights))
    if is_bad.any():
        first = first_true(is_bad)
        weight = np.asarray(weights)[first].item()
        raise DataError(
            f"x[{name!r}], row {first[0]:,}{of_batch}, has the weight {weight}: the weight of an id "
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
    """Return the inputs that tables read directly, also in graphs of layers within the model, by name."""
    graph = _keras.graph_of(model) if hasattr(model, "layers") else None
    fed: dict[str, list[_Fed]] = {}
    names = {} if graph is None else {id(tensor): tensor.name for tensor in graph.inputs}
    for layer in () if graph is None else graph.layers:
        inner = _keras.graph_of(layer) if isinstance(layer, keras.Model) else None
        if inner is None and not isinstance(layer, ShardedEmbedding):
            continue
        readers = _fed_inputs(layer)
        for args, kwargs in _keras.arguments_of(layer):
            tensors = keras.tree.flatten(args[0] if args else kwargs.get("inputs"))
            if inner is not None:
                pairs = [(t, readers.get(own.name, [])) for own, t in zip(inner.inputs, tensors, strict=False)]
            else:
                weights = keras.tree.flatten(args[1] if len(args) > 1 else kwargs.get("weights"))
                pairs = [(t, [_Fed(layer, False)]) for t in tensors] + [(t, [_Fed(layer, True)]) for t in weights]
            for tensor, found in pairs:
                if id(tensor) in names and found:
                    fed.setdefault(names[id(tensor)], []).extend(found)
    return fed


state_extension.register(ModelTables.of)
