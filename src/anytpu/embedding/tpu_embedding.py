"""`TPUEmbedding`: tables beside a custom loop, as `tf.tpu.experimental.embedding.TPUEmbedding`.

Idea: `enqueue` looks the ids of a global batch up and stores the embeddings in variables, which a step reads with
`dequeue`. `apply_gradients` stores the gradients of the embeddings in variables too. The rows of the tables are updated
with them before the next lookup, or when a table is read.

Rule: inside `strategy.run` each replica reads its part of the embeddings, and its gradients are gathered. A batch has
the same number of rows in all calls, which the replicas divide.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import keras
import numpy as np

from anytpu._calls import explain_methods
from anytpu.embedding.configs import TableConfig, refuse_pipelining
from anytpu.embedding.feature_ids import FeatureIds
from anytpu.embedding.feature_tables import FeatureTables
from anytpu.errors import DataError, ProgramError, ReplicaError, SettingError, StrategyError
from anytpu.strategy import TPUStrategy, get_replica_context, get_strategy
from anytpu.strategy.replicas import current_replica


@explain_methods
class TPUEmbedding:
    """Embedding tables for custom training loops.

    Make it in the scope of a strategy. In each step call `enqueue` with the ids of the batch, then `strategy.run` a
    function that calls `dequeue` and `apply_gradients`. Unlike TensorFlow's, it works on every device, and its tables
    can be read and written at any time.

    Args:
        feature_config: a `FeatureConfig`, or a nested structure of them; embeddings have the same structure.
        optimizer: optimizer of the tables without one of their own: SGD, Adagrad, Adam or Ftrl of Keras, or its name.
        pipeline_execution_with_tensor_core: must be False: a lookup sees all updates before it.

    Raises:
        SettingError: a configuration is invalid, or two tables have one name.
        StrategyError: made outside of the scope of a strategy.

    Example:
        >>> words = TableConfig(vocabulary_size=100, dim=4, name="words")
        >>> with TPUStrategy(TPUClusterResolver("virtual", cores=2)).scope():
        ...     embedding = TPUEmbedding({"text": FeatureConfig(words)}, "adagrad")
        >>> embedding.enqueue({"text": np.array([[1, 2], [3, 3]])})
        >>> embedding.dequeue()["text"].shape
        (2, 4)
    """

    def __init__(self, feature_config: Any, optimizer: Any, pipeline_execution_with_tensor_core: bool = False) -> None:
        refuse_pipelining(pipeline_execution_with_tensor_core)
        if not isinstance(get_strategy(), TPUStrategy):
            raise StrategyError(
                "TPUEmbedding holds its tables on the cores of a strategy: make it inside, with tpu.connect().scope(): "
                "embedding = TPUEmbedding(...)"
            )
        self._tables = FeatureTables(feature_config, optimizer)
        self._embeddings: list[keras.Variable] = []
        self._gradients: list[keras.Variable] = []
        self._applied = keras.Variable(0, dtype="int32", trainable=False, name="applied")
        """Number of calls of `apply_gradients` since the last `enqueue`."""
        self._pending: tuple[FeatureIds, ...] | None = None
        self._failed_runs = 0

    @property
    def variables(self) -> list[Any]:
        """The variables to save: the tables, their slots, step counts and learning rates."""
        self._update()
        return self._tables.variables

    @property
    def embedding_tables(self) -> Mapping[Any, Any]:
        """The embeddings of each table now, `(vocabulary_size, dim)`, by its name or its `TableConfig`.

        Call `assign` to replace them.
        """
        self._update()
        return _ReadTables(self._tables.values())

    def assign(self, table: str | TableConfig, value: Any) -> None:
        """Replace the embeddings of a table.

        Args:
            table: name of the table, or its `TableConfig`.
            value: the new embeddings, `(vocabulary_size, dim)`.

        Raises:
            SettingError: there is no such table, or the value has another shape.
        """
        self._update()
        self._tables.assign(str(table.name) if isinstance(table, TableConfig) else table, value)

    def build(self, per_replica_input_shapes: Any = None, per_replica_batch_size: int | None = None) -> None:
        """Do nothing: the tables exist already, and the shapes are those of the first batch."""
        del per_replica_input_shapes, per_replica_batch_size

    def enqueue(
        self, features: Any, weights: Any = None, training: bool = True, name: str | None = None, device: Any = None
    ) -> None:
        """Look up the embeddings of a batch.

        Args:
            features: ids of the global batch, with the structure of `feature_config`. Each is dense `(rows,)` or
                `(rows, ids)`, ragged or sparse, or a `PerReplica` of them.
            weights: the weight of each id, nested like the features. None, or a feature left out of a dictionary, is a
                weight of 1.
            training: whether `apply_gradients` follows, once.
            name: not used.
            device: must be None.

        Raises:
            DataError: an id is outside of its table, or a weight is not finite. Or the batch has another number of rows
                than the first one.
            ProgramError: called inside `strategy.run`. Or `apply_gradients` was not called once for the last batch,
                though its step did not fail, or was called for a batch without training.
        """
        del name
        if device is not None:
            raise SettingError(f"device={device!r} is not supported: the ids are those of all replicas")
        if current_replica() is not None:
            raise ProgramError("enqueue takes ids on the host: call it before strategy.run, not inside")
        # 1. Update the tables with the gradients of the last batch, which this lookup must see.
        self._update()
        has_pending, self._pending = self._pending is not None, None
        # A step that raised an error has not come to its end.
        if has_pending and self._tables.strategy.failed_runs == self._failed_runs:
            raise ProgramError(
                "apply_gradients was not called for the batch that was enqueued last. Call it in the step, or "
                "enqueue(..., training=False)"
            )
        # 2. Look up this batch.
        ids = self._tables.ids(features, weights)
        self._store(self._tables.look_up(ids))
        # 3. Note what `apply_gradients` must do for this batch.
        self._applied.assign(0)
        self._pending = ids if training else None
        self._failed_runs = self._tables.strategy.failed_runs

    def dequeue(self, name: str | None = None) -> Any:
        """Return the embeddings of the batch, with the structure of `feature_config`.

        Inside `strategy.run` they are those of the replica's rows.

        Raises:
            ProgramError: nothing was enqueued.
        """
        del name
        if not self._embeddings:
            raise ProgramError("there is nothing to dequeue: call enqueue(features) before the step")
        values = [jnp.asarray(variable.value) for variable in self._embeddings]
        replica = current_replica()
        if replica is not None:
            context: Any = get_replica_context()
            rows = len(values[0]) // context.num_replicas_in_sync
            first = context.replica_id_in_sync_group * rows
            values = [jax.lax.dynamic_slice_in_dim(value, first, rows) for value in values]
            replica.own_rows.extend(values)
        return self._tables.packed(values)

    def apply_gradients(self, gradients: Any, name: str | None = None) -> None:
        """Update the rows of the batch, before the next `enqueue`.

        Args:
            gradients: gradients of the embeddings, with the structure of `feature_config`; None for zeros. In
                `strategy.run` those of this replica's rows, by `jax.grad` or `tpu.value_and_grad(loss, dequeue())`.
            name: not used.

        Raises:
            ProgramError: nothing was enqueued.
            DataError: the gradients have another structure or shape.
            ReplicaError: the gradients are summed over the replicas.

        A second call for one batch is an error of the next call on the host, such as `enqueue`.
        """
        if not self._embeddings:
            raise ProgramError("there is nothing to update: call enqueue(features) before the step")
        flat = self._tables.flat("gradients", gradients)
        replica = current_replica()
        summed = {id(gradient) for gradient in replica.summed} if replica is not None else set()
        if any(id(gradient) in summed for gradient in flat):
            raise ReplicaError(
                "apply_gradients was given gradients that tpu.value_and_grad has summed over the replicas, and the "
                "embeddings differ between them: differentiate by the arrays of dequeue() themselves, or use "
                "jax.value_and_grad"
            )
        for name, variable, gradient in zip(self._tables.paths, self._gradients, flat, strict=True):
            if gradient is None:
                variable.assign(jnp.zeros(variable.shape, variable.dtype))
                continue
            gradient = jnp.asarray(gradient).astype(variable.dtype)
            if replica is not None:
                context: Any = get_replica_context()
                # Each replica has the gradients of its own rows, and the update needs those of all.
                gradient = context.all_gather(gradient, axis=0)
            if gradient.shape != tuple(variable.shape):
                raise DataError(
                    f"the gradient of {name!r} is for embeddings of the shape {gradient.shape}, and those of "
                    f"the batch have {tuple(variable.shape)}"
                )
            variable.assign(gradient)
        self._applied.assign(self._applied.value + 1)

    __call__ = dequeue

    def _update(self) -> None:
        """Update the tables with the gradients of the last batch, if there are any yet."""
        ids, applied = self._pending, int(np.asarray(self._applied.value))
        if not applied:
            return
        self._pending = None
        self._applied.assign(0)
        if ids is None:
            raise ProgramError(
                "apply_gradients was called for a batch of enqueue(..., training=False), which updates no table: leave "
                "it out of the step, or enqueue with training=True"
            )
        if applied > 1:
            raise ProgramError(
                f"apply_gradients was called {applied} times for one batch: call it once after each enqueue, with the "
                "sum of the gradients. This batch has not updated the tables"
            )
        gradients = tuple(np.asarray(variable.value) for variable in self._gradients)
        self._tables.update(ids, gradients)

    def _store(self, embeddings: list[Any]) -> None:
        shapes = [tuple(value.shape) for value in embeddings]
        if not self._embeddings:
            for number, (shape, value) in enumerate(zip(shapes, embeddings, strict=True)):
                common: Any = {"shape": shape, "dtype": value.dtype, "trainable": False}
                for variables, name in ((self._embeddings, "embeddings"), (self._gradients, "gradients")):
                    variables.append(keras.Variable("zeros", name=f"{name}_{number}", **common))
        before = [tuple(variable.shape) for variable in self._embeddings]
        if shapes != before:
            raise DataError(
                f"the embeddings of this batch have the shapes {shapes}, and those of the first one {before}: pass "
                "batches of one number of rows, and give sequence features a max_sequence_length"
            )
        for variable, value in zip(self._embeddings, embeddings, strict=True):
            variable.assign(value)


class _ReadTables(dict):
    """The embeddings by the name of the table, to be read."""

    def __missing__(self, table: Any) -> Any:
        if isinstance(table, TableConfig):
            return self[table.name]
        raise KeyError(f"there is no table {table!r}; the tables are {', '.join(map(repr, self))}")

    def __setitem__(self, table: Any, value: Any) -> NoReturn:
        name = table.name if isinstance(table, TableConfig) else table
        raise SettingError(
            f"embedding_tables[{name!r}] = ... would change a copy: call embedding.assign({name!r}, array)"
        )
