"""`HostBatches`: the data of an input_fn as global batches on the host.

Idea: an input_fn may return a `tpu.pipeline.Dataset`, another iterable of batches, or arrays, or be a generator
function. Batches of single replicas are concatenated to global batches.

Rule: an iterator with a position (`get_state`, `set_state`) continues at the position of a saved run. Data sets of
`tpu.pipeline` and grain, and arrays, have one. All others start again at their beginning.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from anytpu.engine.feeds import shapes_of
from anytpu.errors import EstimatorError
from anytpu.migrate.estimator.deployment import Deployment
from anytpu.migrate.estimator.steps import parameters_of
from anytpu.migrate.estimator.tables import EstimatorTables
from anytpu.train import checks

Tree = Any
Batch = tuple[Tree, Tree]
"""The pair (features, labels) of one global batch; labels may be None."""


@runtime_checkable
class Positioned(Protocol):
    """An iterator with a position, plain JSON."""

    def get_state(self) -> Any:
        """Return the position."""
        ...

    def set_state(self, state: Any) -> None:
        """Move to a position."""
        ...


class HostBatches(Iterator[Batch]):
    """The global batches of one pass over the data of an input_fn.

    Args:
        input_fn: takes `params`, and those of `mode` and `config` that its signature names.
        deployment: the deployment that runs the batches.
        params: the user's params.
        config: the `RunConfig`.
        tables: the embedding tables of which features hold ids, or None.

    Raises:
        DataError: (at a batch) an id is outside of its table.
        EstimatorError: the input_fn takes no params, or its result is neither iterable nor arrays.
    """

    def __init__(
        self,
        input_fn: Callable,
        deployment: Deployment,
        params: dict[str, Any],
        config: Any,
        tables: EstimatorTables | None = None,
    ) -> None:
        self._deployment, self._tables = deployment, tables
        self._name = getattr(input_fn, "__qualname__", type(input_fn).__name__)
        self._iterators: list[Any] = [
            _iterator(_call(input_fn, deployment, deployment.input_params(params, index), config), deployment)
            for index in range(deployment.invocations)
        ]
        self._first: Batch | None = None
        self.has_ended = False

    def __next__(self) -> Batch:
        try:
            return self._checked_batch(self._global())
        except StopIteration:
            self.has_ended = True
            raise

    def position(self) -> Any:
        """Return the position as plain JSON; None at the end, or if it is unknown."""
        if self.has_ended or not all(isinstance(iterator, Positioned) for iterator in self._iterators):
            return None
        return {"input_fn": self._name, "states": [iterator.get_state() for iterator in self._iterators]}

    def go_to(self, position: Any) -> bool:
        """Move to a position, and return whether that was possible."""
        if position is None or position["input_fn"] != self._name:
            return False
        # An input_fn that is called for each replica has one position for each replica of the saved run.
        if len(position["states"]) != len(self._iterators):
            return False
        if not all(isinstance(iterator, Positioned) for iterator in self._iterators):
            return False
        pairs = list(zip(self._iterators, position["states"], strict=True))
        if any(isinstance(iterator, _Arrays) and not iterator.has(state) for iterator, state in pairs):
            return False
        for iterator, state in pairs:
            iterator.set_state(state)
        return True

    def _global(self) -> Batch:
        """Return the next global batch, concatenated from the replicas' batches if the input_fn yields those."""
        if not self._deployment.is_by_replica:
            return self._padded(_pair(next(self._iterators[0])))
        replicas = self._deployment.replicas
        turns = itertools.cycle(self._iterators)
        parts = [
            self._padded(_pair(part)) for part in (next(next(turns), None) for _ in range(replicas)) if part is not None
        ]
        # Training and evaluation leave out a global batch that lacks replicas.
        if not parts or (len(parts) < replicas and self._deployment.mode != "infer"):
            raise StopIteration
        if self._tables is not None:
            features = self._tables.concatenated([part[0] for part in parts])
            parts = [(own, labels) for own, (_, labels) in zip(features, parts, strict=True)]
        return jax.tree.map(lambda *leaves: np.concatenate([np.asarray(leaf) for leaf in leaves]), *parts)

    def _checked_batch(self, batch: Batch) -> Batch:
        batch = jax.tree.map(np.asarray, batch)
        if self._first is None:
            self._first = batch
            named: dict[str, Any] = {"features": batch[0], "labels": batch[1]}
            # With a batch_axis, axis 0 of features and labels need not have equal sizes.
            for columns in [named] if self._deployment.batch_axis is None else [{k: v} for k, v in named.items()]:
                checks.check_columns(columns)
        elif self._deployment.on_tpu and self._deployment.mode != "infer":
            _check_static(self._static(batch), self._static(self._first))
        return batch

    def _padded(self, batch: Batch) -> Batch:
        """Return a batch with rectangular ids."""
        return batch if self._tables is None else (self._tables.padded(batch[0]), batch[1])

    def _static(self, batch: Batch) -> Batch:
        """Return the arrays whose shapes must not change: all but ids, of which a row has any number."""
        return batch if self._tables is None else (self._tables.without_ids(batch[0]), batch[1])


class _Arrays(Iterator[Tree]):
    """Batches cut from arrays in order: repeated without end for training, else once, with a shorter last batch."""

    def __init__(self, arrays: Tree, rows: int, is_endless: bool) -> None:
        self._arrays, self._rows, self._is_endless = arrays, rows, is_endless
        self._taken = 0
        self._length = len(jax.tree.leaves(arrays)[0])
        if is_endless and rows > self._length:
            raise EstimatorError(
                f"input_fn returns arrays of {self._length} rows, and a batch has {rows}: pass more rows, or a smaller "
                "batch size"
            )

    def __next__(self) -> Tree:
        start = self._taken * self._rows
        if self._is_endless:
            start %= self._length // self._rows * self._rows
        elif start >= self._length:
            raise StopIteration
        self._taken += 1
        return jax.tree.map(lambda array: array[start : start + self._rows], self._arrays)

    def has(self, state: dict[str, int]) -> bool:
        """Return whether a position is one in arrays of as many rows, in batches of this size."""
        return {**state, "batches": 0} == {**self.get_state(), "batches": 0}

    def get_state(self) -> dict[str, int]:
        return {"batches": self._taken, "rows": self._length, "batch_size": self._rows}

    def set_state(self, state: dict[str, int]) -> None:
        self._taken = state["batches"]


def split_rows(leaf: np.ndarray, replicas: int, axis: int = 0) -> np.ndarray:
    """Split an array's rows into the replicas' shards: `(rows, ...)` to `(replicas, rows / replicas, ...)`.

    Args:
        leaf: the array.
        replicas: number of replicas, a divisor of the number of rows.
        axis: the axis of the rows.

    Example:
        >>> split_rows(np.arange(4), 2).tolist()
        [[0, 1], [2, 3]]
    """
    if axis == 0:
        return leaf.reshape(replicas, len(leaf) // replicas, *leaf.shape[1:])
    return np.stack(np.split(leaf, replicas, axis))


def pad_rows(leaf: np.ndarray, rows: int) -> np.ndarray:
    """Pad an array to a number of rows by repeating its last row.

    Example:
        >>> pad_rows(np.arange(3), 5).tolist()
        [0, 1, 2, 2, 2]
    """
    return leaf if len(leaf) == rows else leaf[np.minimum(np.arange(rows), len(leaf) - 1)]


def _call(input_fn: Callable, deployment: Deployment, params: dict[str, Any], config: Any) -> Any:
    parameters = parameters_of(input_fn)
    if "params" not in parameters:
        raise EstimatorError(
            f"input_fn ({getattr(input_fn, '__name__', input_fn)}) does not include params argument, required by "
            'TPUEstimator to pass batch size as params["batch_size"]: write def input_fn(params)'
        )
    available = {"params": params, "mode": deployment.mode, "config": config}
    return input_fn(**{name: value for name, value in available.items() if name in parameters})


def _iterator(batches: Any, deployment: Deployment) -> Iterator[Any]:
    if inspect.isfunction(batches):
        batches = batches()
    if isinstance(batches, np.ndarray | jax.Array | tuple | dict):
        leaves = jax.tree.leaves(batches)
        if leaves and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves):
            return _array_batches(batches, deployment)
    elif hasattr(batches, "__iter__") and not isinstance(batches, str | bytes):
        return iter(batches)
    raise EstimatorError(
        "input_fn must return a data set, such as a tpu.pipeline.Dataset of batches (features, labels), another "
        f"iterable of batches, or the arrays (features, labels), not {batches!r}"
    )


def _array_batches(arrays: Tree, deployment: Deployment) -> _Arrays:
    arrays = jax.tree.map(np.asarray, arrays)
    features, labels = _pair(arrays)
    checks.check_columns({"features": features, "labels": labels})
    rows = deployment.input_params({}, 0).get("batch_size") or len(jax.tree.leaves(arrays)[0])
    return _Arrays(arrays, rows, is_endless=deployment.mode == "train")


def _check_static(batch: Batch, first: Batch) -> None:
    for name, tree, first_tree in zip(("features", "labels"), batch, first, strict=True):
        if shapes_of(tree) != shapes_of(first_tree):
            shapes, before = ([leaf.shape for leaf in jax.tree.leaves(part)] for part in (tree, first_tree))
            raise EstimatorError(
                f"The {name} to the model returned by input_fn must have static shape. Tensor: {_listed(shapes)} after "
                f"{_listed(before)}. Make every batch as long as the first, for example with "
                'batch(params["batch_size"], drop_remainder=True)'
            )


def _listed(shapes: list[tuple]) -> str:
    return " and ".join(map(str, shapes))


def _pair(element: Any) -> Batch:
    """Return (features, labels) of a data set's element, which may be the features alone."""
    if isinstance(element, list | tuple):
        if len(element) == 2:
            return element[0], element[1]
        if len(element) == 1:
            return element[0], None
        raise EstimatorError(
            f"a batch of input_fn is (features, labels), or features alone, not a {type(element).__name__} of "
            f"{len(element)}: put several features into a dictionary"
        )
    return element, None
