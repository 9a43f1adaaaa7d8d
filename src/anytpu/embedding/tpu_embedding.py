"""`TPUEmbedding`: tables beside a custom loop, as `tf.tpu.experimental.embedding.TPUEmbedding`.

Idea: `enqueue` looks the ids of a global batch up and stores the embeddings in variables, which a step reads with
`dequeue`. `apply_gradients` stores the gradients of the embeddings in variables too. The rows of the tables are updated
with them before the next lookup, or when a table is read.

Rule: inside `strategy.run` each replica reads its part of the embeddings, and its gradients are gathered. A batch has
the same number of rows in all calls, which the replicas divide.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from anytpu._calls import explain_methods
from anytpu.embedding.bags import FeatureBags, bags_of
from anytpu.embedding.configs import FeatureConfig, TableConfig
from anytpu.embedding.feature_ids import FeatureIds, check_rows, ids_of_feature
from anytpu.embedding.rows import Table, look_up, updated
from anytpu.embedding.stacked_tables import StackedTables, stacks_of
from anytpu.embedding.table_calls import TableCalls
from anytpu.errors import DataError, ProgramError, SettingError, StrategyError
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
        if pipeline_execution_with_tensor_core:
            raise SettingError(
                "pipeline_execution_with_tensor_core=True would look rows up before the update of the last step: leave "
                "it out"
            )
        self._strategy: Any = get_strategy()
        if not isinstance(self._strategy, TPUStrategy):
            raise StrategyError(
                "TPUEmbedding holds its tables on the cores of a strategy: make it inside, with tpu.connect().scope(): "
                "embedding = TPUEmbedding(...)"
            )
        self._features: list[FeatureConfig]
        self._features, self._form = jax.tree.flatten(feature_config, is_leaf=_is_feature)
        paths, _ = zip(*jax.tree_util.tree_flatten_with_path(feature_config, is_leaf=_is_feature)[0], strict=True)
        self._paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path in paths]
        for feature in self._features:
            if not isinstance(feature, FeatureConfig):
                raise SettingError(f"feature_config must consist of FeatureConfig, not {feature!r}")
        self._tables = _named({id(feature.table): feature.table for feature in self._features}.values())
        self._stacks = list(stacks_of(self._tables, optimizer))
        self._calls = TableCalls(self._strategy, self._stacks)
        self._embeddings: list[keras.Variable] = []
        self._gradients: list[keras.Variable] = []
        self._has_gradients = keras.Variable(0, dtype="int32", trainable=False, name="has_gradients")
        self._pending: tuple[FeatureIds, ...] | None = None

    @property
    def variables(self) -> list[Any]:
        """The variables to save: the tables, their slots, step counts and learning rates."""
        self._update()
        return [variable for stack in self._stacks for variable in stack.variables]

    @property
    def embedding_tables(self) -> dict[str, Any]:
        """The embeddings of each table now by its name, `(vocabulary_size, dim)`."""
        self._update()
        return {str(table.name): self._stack_of(table).rows_of(table) for table in self._tables}

    def assign(self, table: str, value: Any) -> None:
        """Replace the embeddings of a table.

        Args:
            table: name of the table.
            value: the new embeddings, `(vocabulary_size, dim)`.

        Raises:
            SettingError: there is no such table, or the value has another shape.
        """
        self._update()
        for config in self._tables:
            if config.name == table:
                return self._stack_of(config).assign_rows(config, value)
        names = ", ".join(repr(config.name) for config in self._tables)
        raise SettingError(f"there is no table {table!r}; the tables are {names}")

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
            weights: the weight of each id, nested like the features, or None.
            training: whether `apply_gradients` follows.
            name: not used.
            device: must be None.

        Raises:
            DataError: an id is outside of its table, or a weight is not finite. Or the batch has another number of rows
                than the first one.
            ProgramError: called inside `strategy.run`, or `apply_gradients` was not called for the last batch.
        """
        del name
        if device is not None:
            raise SettingError(f"device={device!r} is not supported: the ids are those of all replicas")
        if current_replica() is not None:
            raise ProgramError("enqueue takes ids on the host: call it before strategy.run, not inside")
        self._update()
        if self._pending is not None:
            self._pending = None
            raise ProgramError(
                "apply_gradients was not called for the batch that was enqueued last. Call it in the step, or "
                "enqueue(..., training=False)"
            )
        given = self._flat("features", features)
        weights_of_ids = [None] * len(given) if weights is None else self._flat("weights", weights)
        names = [feature.name or path for feature, path in zip(self._features, self._paths, strict=True)]
        ids = tuple(map(ids_of_feature, self._features, names, given, weights_of_ids))
        check_rows(ids, self._strategy.num_replicas_in_sync)
        embeddings = self._calls.run("look_up", self._looked_up, ids)
        self._store(embeddings)
        self._has_gradients.assign(0)
        self._pending = ids if training else None

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
        if current_replica() is not None:
            context: Any = get_replica_context()
            rows = len(values[0]) // context.num_replicas_in_sync
            first = context.replica_id_in_sync_group * rows
            values = [jax.lax.dynamic_slice_in_dim(value, first, rows) for value in values]
        return jax.tree.unflatten(self._form, values)

    def apply_gradients(self, gradients: Any, name: str | None = None) -> None:
        """Update the rows of the batch, before the next `enqueue`.

        Args:
            gradients: gradients of the embeddings, with the structure of `feature_config`; None for zeros.
            name: not used.

        Raises:
            ProgramError: nothing was enqueued.
            DataError: the gradients have another structure or shape.
        """
        if not self._embeddings:
            raise ProgramError("there is nothing to update: call enqueue(features) before the step")
        given = self._flat("gradients", gradients)
        is_inside = current_replica() is not None
        for name, variable, gradient in zip(self._paths, self._gradients, given, strict=True):
            if gradient is None:
                variable.assign(jnp.zeros(variable.shape, variable.dtype))
                continue
            gradient = jnp.asarray(gradient).astype(variable.dtype)
            if is_inside:
                context: Any = get_replica_context()
                gradient = context.all_gather(gradient, axis=0)
            if gradient.shape != tuple(variable.shape):
                raise DataError(
                    f"the gradient of {name!r} is for embeddings of the shape {gradient.shape}, and those of "
                    f"the batch have {tuple(variable.shape)}"
                )
            variable.assign(gradient)
        self._has_gradients.assign(1)

    __call__ = dequeue

    def _update(self) -> None:
        """Update the tables with the gradients of the last batch, if there are any yet."""
        ids = self._pending
        if ids is None or not int(np.asarray(self._has_gradients.value)):
            return
        self._pending = None
        self._has_gradients.assign(0)
        gradients = tuple(np.asarray(variable.value) for variable in self._gradients)
        self._calls.run("update", self._updated, (ids, gradients))

    def _bags(self, features: Any, dtype: Any) -> dict[int, list[tuple[int, FeatureBags]]]:
        """Return for each stack, by its index, the index and the bags of each of its features."""
        bags: dict[int, list[tuple[int, FeatureBags]]] = {}
        for index, (feature, (ids, weights)) in enumerate(zip(self._features, features, strict=True)):
            stack = self._stack_of(feature.table)
            combiner = None if feature.max_sequence_length else feature.table.combiner
            made = bags_of(ids, weights, combiner, feature.table.vocabulary_size, dtype, stack.offset(feature.table))
            bags.setdefault(self._stacks.index(stack), []).append((index, made))
        return bags

    def _looked_up(self, tables: list[Table], features: Any) -> tuple[list[Table], list[Any]]:
        results: list[Any] = [None] * len(self._features)
        for stack, members in self._bags(features, tables[0].rows.dtype).items():
            for index, bags in members:
                results[index] = bags.result(look_up(tables[stack].rows, bags.bags), is_marked=False)
        return tables, results

    def _updated(self, tables: list[Table], batch: Any) -> tuple[list[Table], None]:
        features, gradients = batch
        new = list(tables)
        for stack, members in self._bags(features, tables[0].rows.dtype).items():
            table = tables[stack]
            sums = [gradients[index].reshape(-1, table.rows.shape[1]) for index, _ in members]
            optimizer = self._stacks[stack].row_optimizer
            rows, slots = updated(optimizer, table, [bags.bags for _, bags in members], sums)
            new[stack] = dataclasses.replace(table, rows=rows, slots=slots)
        return new, None

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

    def _flat(self, name: str, tree: Any) -> list[Any]:
        """Return the parts of an argument, one for each feature."""
        try:
            return self._form.flatten_up_to(tree)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{name} must have the structure of feature_config, {self._form}: {str(error).splitlines()[0]}"
            ) from error

    def _stack_of(self, table: TableConfig) -> StackedTables:
        return next(stack for stack in self._stacks if stack.has(table))


def _is_feature(node: Any) -> bool:
    return isinstance(node, FeatureConfig)


def _named(tables: Any) -> list[TableConfig]:
    """Return the tables, each with a name of its own."""
    listed = list(tables)
    for number, table in enumerate(listed):
        table.name = table.name or f"table_{number}"
    names = [table.name for table in listed]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"two tables have the name {name!r}; features that share a table share its TableConfig")
    return listed
