"""`ModeRun`: run the steps of one mode of an estimator, from global batches to the outputs of every step.

Idea: a step returns each output once for each replica. All host work on outputs (losses, metrics, predictions, host
calls) starts from the same array form, `(steps, replicas, ...)`.

Rule: a step is compiled once for each batch form; later calls reuse it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

import jax
import numpy as np

from anytpu.engine.feeds import BUFFER_BYTES, MAX_STEPS, shapes_of
from anytpu.errors import DataExhaustedError, EstimatorError
from anytpu.migrate.estimator.deployment import Deployment
from anytpu.migrate.estimator.inputs import Batch, HostBatches, split_rows
from anytpu.migrate.estimator.spec import Hooks
from anytpu.migrate.estimator.steps import EMBEDDING_GRADIENTS, ModelStep
from anytpu.program.program import Tree
from anytpu.strategy.per_replica import PerReplica, is_per_replica
from anytpu.strategy.strategy import TPUStrategy

Outputs = Tree
"""The outputs of some steps, as NumPy arrays `(steps, replicas, ...)`."""


@final
class ModeRun:
    """The run of one mode of an estimator on its cores.

    Args:
        deployment: the mode's cores and batch size.
        step: the step of one replica, with the embedding tables if there are some.
        params: the user's params.
        strategy_of_tables: returns the strategy on whose cores the tables are.
    """

    def __init__(
        self,
        deployment: Deployment,
        step: ModelStep,
        params: dict[str, Any],
        strategy_of_tables: Callable[[], TPUStrategy],
    ) -> None:
        self.deployment, self.step = deployment, step
        self._params, self._strategy_of_tables = params, strategy_of_tables
        self._is_made = False
        self._loops = False

    def batches(self, input_fn: Callable) -> HostBatches:
        """Return the batches of an input_fn."""
        return HostBatches(input_fn, self.deployment, self._params, self.step.config, self.step.tables)

    def hooks(self, caller_hooks: Iterable[Any] | None) -> Hooks:
        """Return the hooks of the caller, and those of the model_fn's spec for this mode."""
        spec, own = self.step.spec, ()
        if spec is not None:
            by_mode = {"train": spec.training_hooks, "eval": spec.evaluation_hooks, "infer": spec.prediction_hooks}
            own = by_mode[self.deployment.mode] or ()
        return Hooks([*(caller_hooks or ()), *own])

    def make(self, batch: Batch) -> None:
        """Make the model's variables for batches of this form, unless they are made."""
        if self._is_made:
            return
        self.step.add_tables(self._strategy_of_tables)
        batch, _ = self._embedded(batch)
        specs = jax.tree.map(lambda leaf: leaf.spec(), self._split(batch), is_leaf=is_per_replica)
        outputs = self.step.make(self.deployment.strategy, specs)
        # A loop keeps the outputs of all its steps. They must not need more memory than its batches, or than a buffer.
        self._loops = _bytes(outputs) <= max(_bytes(specs), BUFFER_BYTES // MAX_STEPS)
        self._is_made = True

    def steps(self, batches: Iterator[Batch], count: int, max_steps: int) -> Iterator[Outputs]:
        """Run `count` steps, or fewer if the batches end, and yield their outputs chunk by chunk.

        Args:
            batches: global batches.
            count: maximum number of steps.
            max_steps: maximum number of steps in a chunk.
        """
        for _, same_form in itertools.groupby(itertools.islice(batches, count), key=shapes_of):
            while chunk := _take(same_form, max_steps):
                yield self._run(chunk)

    def once(self, batch: Batch) -> Tree:
        """Run one step and return its outputs: `PerReplica` values, or plain arrays if there is one replica."""
        return self._run_step(self._split(self._embedded(batch)[0]))

    def _run(self, chunk: list[Batch]) -> Outputs:
        strategy = self.deployment.strategy
        if not self._loops or self.step.tables is not None:
            return jax.tree.map(lambda *steps: np.stack(steps), *map(self._run_alone, chunk))
        batches = [self._split(batch) for batch in chunk]
        result = strategy.loop(self.step, iter(batches), len(batches), keeps_every=True)
        parts = [jax.tree.map(lambda leaf, n=n: np.asarray(leaf)[:n], strategy.backend.get(e)) for e, n in result.every]
        return jax.tree.map(lambda *segments: np.concatenate(segments), *parts)

    def _run_alone(self, batch: Batch) -> Outputs:
        """Run one step, between the lookup and the update of its tables, and return its outputs, `(replicas, ...)`."""
        batch, ids = self._embedded(batch)
        outputs = jax.tree.map(self._stack, self._run_step(self._split(batch)), is_leaf=is_per_replica)
        gradients = outputs.pop(EMBEDDING_GRADIENTS, None)
        if gradients is not None:
            assert self.step.tables is not None
            rows = {name: array.reshape(-1, *array.shape[2:]) for name, array in gradients.items()}
            self.step.tables.update(ids, rows)
        return outputs

    def _embedded(self, batch: Batch) -> tuple[Batch, Any]:
        """Return a batch with embeddings in place of ids, and the ids."""
        if self.step.tables is None:
            return batch, None
        features, ids = self.step.tables.embedded(batch[0])
        return (features, batch[1]), ids

    def _run_step(self, batch: tuple[Tree, Tree]) -> Tree:
        """Run one step on a batch that is already split over the replicas."""
        return self.deployment.strategy.run(self.step, (batch,))

    def _stack(self, value: Any) -> np.ndarray:
        return value.stacked() if isinstance(value, PerReplica) else np.asarray(value)[None]

    def _split(self, batch: Batch) -> tuple[Tree, Tree]:
        axes = self.deployment.batch_axis or (0, 0)
        return tuple(
            jax.tree.map(lambda leaf, axis=axis: self._shards(leaf, axis), part)
            for part, axis in zip(batch, axes, strict=True)
        )  # pyright: ignore[reportReturnType]

    def _shards(self, leaf: np.ndarray, axis: int) -> PerReplica:
        replicas = self.deployment.replicas
        rows = leaf.shape[axis]
        if rows % replicas:
            raise EstimatorError(
                f"input_fn returned a batch of {rows} rows, which the {replicas} replicas do not divide: make batches "
                'of params["batch_size"] rows, the last one too, for example with batch(params["batch_size"], '
                "drop_remainder=True)"
            )
        return PerReplica.of_stack(split_rows(leaf, replicas, axis))


def joined(outputs: Outputs) -> Tree:
    """Return the rows of all steps and replicas, concatenated: `(steps * replicas * rows, ...)`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), outputs)


def _take(batches: Iterator[Batch], max_batches: int) -> list[Batch]:
    """Take batches until they fill a buffer."""
    chunk: list[Batch] = []
    size = 0
    while len(chunk) < max_batches and size < BUFFER_BYTES and (batch := next(batches, None)) is not None:
        size += _bytes(batch)
        chunk.append(batch)
    return chunk


def _bytes(tree: Tree) -> int:
    return sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))


def first_of(batches: HostBatches) -> Batch:
    """Return the first batch.

    Raises:
        DataExhaustedError: there is no batch.
    """
    first = next(batches, None)
    if first is None:
        raise DataExhaustedError(
            "input_fn yielded no batch: return a data set with at least one batch that has rows for all replicas"
        )
    return first
