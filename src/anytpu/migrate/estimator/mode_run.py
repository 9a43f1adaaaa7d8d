"""`ModeRun`: run the steps of one mode of an estimator, from global batches to the outputs of every step.

Idea: a step returns each output once for each replica. All host work on outputs (losses, metrics, predictions, host
calls) starts from the same array form, `(steps, replicas, ...)`.

Rule: a step is compiled once for each batch form; later calls reuse it. `Runs` keeps the run of each mode.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, final

import jax
import numpy as np

from anytpu.engine.feeds import BUFFER_BYTES, MAX_STEPS, shapes_of
from anytpu.errors import DataExhaustedError, EstimatorError
from anytpu.migrate.estimator.deployment import Deployment, strategy_of
from anytpu.migrate.estimator.inputs import Batch, HostBatches, split_rows
from anytpu.migrate.estimator.run_config import RunConfig
from anytpu.migrate.estimator.spec import Hooks, ModeKeys
from anytpu.migrate.estimator.steps import EMBEDDING_GRADIENTS, EvalStep, ModelStep, PredictStep, TrainStep
from anytpu.migrate.estimator.tables import EstimatorTables
from anytpu.migrate.estimator.variable_store import VariableStore
from anytpu.program.program import Tree
from anytpu.strategy.identity import Identity
from anytpu.strategy.per_replica import PerReplica, is_per_replica
from anytpu.strategy.strategy import TPUStrategy

Outputs = Tree
"""The outputs of some steps, as NumPy arrays `(steps, replicas, ...)`."""


_STEPS: dict[str, type[ModelStep]] = {"train": TrainStep, "eval": EvalStep, "infer": PredictStep}


@final
class ModeRun:
    """The run of one mode of an estimator on its cores.

    Args:
        deployment: the mode's cores and batch size.
        step: the step of one replica, with the embedding tables if there are some.
        strategy_of_tables: returns the strategy on whose cores the tables are.
    """

    def __init__(
        self, deployment: Deployment, step: ModelStep, strategy_of_tables: Callable[[], TPUStrategy] | None = None
    ) -> None:
        self.deployment, self.step, self._strategy_of_tables = deployment, step, strategy_of_tables
        self._is_made = False
        self._loops = False

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
        add_tables(self.step, self._strategy_of_tables)
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


def add_tables(step: ModelStep, strategy_of_tables: Callable[[], TPUStrategy] | None) -> None:
    """Make the embedding tables of a step, if it has some, and add them to its variables."""
    if step.tables is not None and strategy_of_tables is not None:
        tables = step.tables.make(strategy_of_tables())
        step.store.add_tables(tables.variables, tables.table_variables)


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


@dataclasses.dataclass(eq=False)
class Runs:
    """The run of each mode of an estimator.

    Attributes:
        model_fn, params, config, use_tpu, eval_on_tpu: those of the `TPUEstimator`.
        store: the variables of the model.
        rows: number of rows of the global batch, by mode, or None.
        batch_axis: the axes of the rows of features and labels in training, or None.
        tables: the embedding tables, or None.
    """

    model_fn: Callable
    params: dict[str, Any]
    config: RunConfig
    store: VariableStore
    use_tpu: bool
    eval_on_tpu: bool
    rows: Mapping[str, int | None]
    batch_axis: Any
    tables: EstimatorTables | None

    def __post_init__(self) -> None:
        self._strategies: dict[bool, TPUStrategy] = {}
        self._runs: dict[str, tuple[Identity, ModeRun]] = {}

    def is_on_tpu(self, mode: str) -> bool:
        """Return whether a mode runs on the TPU."""
        return self.use_tpu and (self.eval_on_tpu or mode != ModeKeys.EVAL)

    def of(self, mode: str) -> ModeRun:
        """Return the run of a mode; it is made again if model_fn has changed or the system was stopped.

        Raises:
            EstimatorError, SettingError: the batch size or the number of shards is invalid for the system.
        """
        identity, known = Identity(self.model_fn), self._runs.get(mode)
        if known is not None and known[0] == identity and known[1].deployment.strategy.system.is_running:
            return known[1]
        deployment = self._deployment(mode)
        params = deployment.model_params(self.params)
        step = _STEPS[mode](self.model_fn, mode, params, self.config, self.store)
        step.tables = self.tables
        run = ModeRun(deployment, step, self._strategy_of_tables)
        self._runs[mode] = identity, run
        return run

    def batches(self, run: ModeRun, input_fn: Callable) -> HostBatches:
        """Return the batches of an input_fn for a run."""
        return HostBatches(input_fn, run.deployment, self.params, self.config, self.tables)

    def check_one_program(self) -> None:
        """Refuse to make one Program of a training step with embedding tables.

        Raises:
            EstimatorError: the estimator has embedding tables.
        """
        if self.tables is not None:
            raise EstimatorError(
                "a training step with embedding_config_spec is three programs: a lookup, the step of model_fn, and an "
                "update. To plan it as one, put tpu.layers.ShardedEmbedding into a Keras model, and type "
                "tpu.plan(model, batch)"
            )

    def serving_step(self, rows: int) -> PredictStep:
        """Return a prediction step for a number of rows, which runs on any system."""
        params = {**self.params, "batch_size": rows, "use_tpu": False}
        step = PredictStep(self.model_fn, "infer", params, self.config, self.store)
        step.tables, step.looks_up = self.tables, True
        add_tables(step, self._strategy_of_tables)
        return step

    def _deployment(self, mode: str) -> Deployment:
        tpu_config, on_tpu = self.config.tpu_config, self.is_on_tpu(mode)
        assert tpu_config is not None
        axis = self.batch_axis if on_tpu and mode == ModeKeys.TRAIN else None
        pipeline: Any = tpu_config.per_host_input_for_training
        deployment = Deployment(mode, self._strategy(on_tpu), on_tpu, self.rows[mode], pipeline, axis)
        deployment.check(tpu_config.num_shards)
        return deployment

    def _strategy_of_tables(self) -> TPUStrategy:
        """Return the strategy of training, on whose cores the embedding tables are in all modes."""
        return self._strategy(self.use_tpu)

    def _strategy(self, on_tpu: bool) -> TPUStrategy:
        known = self._strategies.get(on_tpu)
        if known is None or not known.system.is_running:
            self._strategies[on_tpu] = strategy_of(self.config, on_tpu)
        return self._strategies[on_tpu]


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
