"""`ModeRun`: one mode of an estimator on its cores: batches in, outputs of every step out.

Idea: what a step returns is one value for each replica and step. Everything that the host does with them (losses,
metrics, predictions, host calls) begins with the same array, `(steps, replicas, ...)`.

Rule: a step is compiled once for a form of batch; a call compiles nothing that an earlier one has compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, final

import jax
import numpy as np

from anytpu.engine.feeds import BUFFER_BYTES, MOST_STEPS, shapes_of
from anytpu.errors import EstimatorError
from anytpu.program.program import Tree
from anytpu.strategy.per_replica import PerReplica, is_per_replica
from anytpu.train.estimator.deployment import Deployment
from anytpu.train.estimator.inputs import Batch, dealt
from anytpu.train.estimator.model import Model
from anytpu.train.estimator.steps import EvalStep, ModelStep, PredictStep, TrainStep
from anytpu.train.estimator.variable_store import VariableStore

Outputs = Tree
"""What some steps returned, as NumPy arrays `(steps, replicas, ...)`."""


_STEPS: dict[str, type[ModelStep]] = {"train": TrainStep, "eval": EvalStep, "infer": PredictStep}


@final
class ModeRun:
    """One mode of an estimator on its cores.

    Args:
        deployment: where.
        step: what one replica does.
    """

    def __init__(self, deployment: Deployment, step: ModelStep) -> None:
        self.deployment, self.step = deployment, step
        self._is_made = False
        self._loops = False

    @classmethod
    def of(
        cls, model_fn: Callable, deployment: Deployment, params: dict[str, Any], config: Any, store: VariableStore
    ) -> ModeRun:
        """Return the run of a model_fn in the mode of a deployment."""
        model = Model(model_fn, deployment.mode, deployment.model_params(params), config)
        return cls(deployment, _STEPS[deployment.mode](model, store))

    def hooks(self) -> list[Any]:
        """Return the hooks that the model_fn asks for in this mode."""
        spec = self.step.spec
        if spec is None:
            return []
        hooks = {"train": spec.training_hooks, "eval": spec.evaluation_hooks, "infer": spec.prediction_hooks}
        return list(hooks[self.deployment.mode] or ())

    def make(self, batch: Batch) -> None:
        """Make the model's variables for batches like this one, unless they are made."""
        if self._is_made:
            return
        specs = jax.tree.map(lambda leaf: leaf.spec(), self._dealt(batch), is_leaf=is_per_replica)
        outputs = self.step.make(self.deployment.strategy, specs)
        # A loop has room for the outputs of as many steps as its batches fill a buffer with.
        self._loops = _bytes(outputs) <= max(_bytes(specs), BUFFER_BYTES // MOST_STEPS)
        self._is_made = True

    def steps(self, batches: Iterator[Batch], count: int, most: int) -> Iterator[Outputs]:
        """Run up to `count` steps, and yield their outputs, chunk by chunk; fewer when the batches end.

        Args:
            batches: global batches.
            count: how many steps.
            most: the most steps of a chunk.
        """
        for _, alike in itertools.groupby(itertools.islice(batches, count), key=shapes_of):
            while chunk := _take(alike, most):
                yield self._run([self._dealt(batch) for batch in chunk])

    def once(self, batch: Batch) -> Tree:
        """Run one step and return its outputs, as `PerReplica`; plain arrays when there is one replica."""
        return self.deployment.strategy.run(self.step, (self._dealt(batch),))

    def _run(self, chunk: list[tuple[Tree, Tree]]) -> Outputs:
        strategy = self.deployment.strategy
        if not self._loops:
            outputs = [jax.tree.map(self._stack, self.once_dealt(one), is_leaf=is_per_replica) for one in chunk]
            return jax.tree.map(lambda *steps: np.stack(steps), *outputs)
        result = strategy.loop(self.step, iter(chunk), len(chunk), keeps_every=True)
        parts = [jax.tree.map(lambda one, n=n: np.asarray(one)[:n], strategy.backend.get(e)) for e, n in result.every]
        return jax.tree.map(lambda *ones: np.concatenate(ones), *parts)

    def once_dealt(self, batch: tuple[Tree, Tree]) -> Tree:
        """Run one step on a batch that is dealt to the replicas already."""
        return self.deployment.strategy.run(self.step, (batch,))

    def _stack(self, value: Any) -> np.ndarray:
        return value.stacked() if isinstance(value, PerReplica) else np.asarray(value)[None]

    def _dealt(self, batch: Batch) -> tuple[Tree, Tree]:
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
        return PerReplica.of_stack(dealt(leaf, replicas, axis))


def joined(outputs: Outputs) -> Tree:
    """Return the rows of all steps and replicas, one after the other: `(steps * replicas * rows, ...)`."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), outputs)


def _take(batches: Iterator[Batch], most: int) -> list[Batch]:
    """Take batches that fit a buffer together."""
    chunk: list[Batch] = []
    size = 0
    while len(chunk) < most and size < BUFFER_BYTES and (batch := next(batches, None)) is not None:
        size += _bytes(batch)
        chunk.append(batch)
    return chunk


def _bytes(tree: Tree) -> int:
    return sum(int(np.prod(leaf.shape)) * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree))
