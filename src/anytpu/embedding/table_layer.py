"""`TableLayer`: the variables of an embedding table in a Keras model, and its lookups.

Idea: the table and its slots are trainable weights with `overwrite_with_gradient`: Keras assigns them the result of the
backward pass, which `rows.look_up_to_train` makes of the rows of the batch. The optimizer of `model.compile` skips
them, so a table has an optimizer of its own.

Rule: a step looks a table up once, for all features that use it, since each lookup returns a new table
(`assigned_tables.py`).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from anytpu import _jax, _keras, units
from anytpu._contexts import value_within
from anytpu.embedding.assigned_tables import BackwardPasses, watch
from anytpu.embedding.bags import FeatureBags
from anytpu.embedding.first_rows import TableInitializer, filled, in_blocks
from anytpu.embedding.row_optimizers import as_optimizer, learning_rate_of, row_optimizer
from anytpu.embedding.rows import TableArrays, look_up_to_train
from anytpu.engine.kernels import prepare_memory
from anytpu.errors import ProgramError, ReplicaError, SettingError
from anytpu.strategy.current import CURRENT, MAKES_TABLE
from anytpu.strategy.replicas import current_replica
from anytpu.strategy.state_extension import LAYERS

ROW_MULTIPLE = 1024
"""A large table has a number of rows that is a multiple of this, so that slices of up to so many cores split it."""

_MIN_SPLIT_ELEMENTS = 2**20

MAX_ROWS = 2**31 - 2**24
"""Maximum number of rows of a table: ids have 32 bits, and 2**24 of them are kept for ids that are no row."""


def stored_rows(rows: int, width: int) -> int:
    """Return the number of rows with which a table is stored: its own, or for a large table the next multiple of 1024.

    Example:
        >>> stored_rows(1000, 8), stored_rows(1_000_001, 64)
        (1000, 1000448)
    """
    return rows if rows * width < _MIN_SPLIT_ELEMENTS else math.ceil(rows / ROW_MULTIPLE) * ROW_MULTIPLE


class TableLayer(keras.layers.Layer):
    """A Keras layer with the weights of one table.

    Args:
        rows: number of rows that ids may name.
        width: number of columns.
        optimizer: a Keras optimizer or its name; see `row_optimizer`.
        settings: arguments of `keras.layers.Layer`.
    """

    def __init__(self, rows: int, width: int, optimizer: Any, **settings: Any) -> None:
        # Ids must not be cast to a half precision, nor the table.
        super().__init__(**settings, autocast=False)
        self.table_optimizer = as_optimizer(optimizer)
        self.row_optimizer = row_optimizer(self.table_optimizer)
        """The formulas of the optimizer."""
        self.input_dim, self._width = rows, width
        self._learning_rate: Any = None
        self._first_rate: float | None = None
        self.has_own_rate = False
        """Whether `learning_rate` was assigned."""
        LAYERS.add(self)
        self.passes = BackwardPasses()
        """The number of backward passes through the table since its last update."""

    def add_table(self, initializer: Any) -> None:
        """Make the variables of the table.

        Args:
            initializer: a Keras initializer of the rows.

        Raises:
            ReplicaError: code of one replica would train the table.
            SettingError: the table is larger than the memory of its cores.
        """
        self._check_whole_batch()
        shape = stored_rows(self.input_dim, self._width), self._width
        if _keras.stateless_scope() is None:
            self._check_memory(shape)
        common: dict[str, Any] = {"shape": shape, "autocast": False, "overwrite_with_gradient": True}
        # A step reads rows all over the table: with huge pages the processor finds them in half the time.
        prepare_memory(4 * math.prod(shape))
        strategy = CURRENT.get()
        if strategy is None or strategy.system.topology.is_virtual or strategy.num_replicas_in_sync == 1:
            initializer = in_blocks(initializer)
        if not isinstance(initializer, keras.initializers.Initializer):
            initializer = TableInitializer(initializer)
        with value_within(MAKES_TABLE, True):
            self._table = self.add_weight(name="embeddings", initializer=initializer, **common)
            self._slots = [
                self.add_weight(name=f"embeddings_{name}", initializer=TableInitializer(filled(value)), **common)
                for name, value in self.row_optimizer.slots
            ]
        single: dict[str, Any] = {"shape": (), "autocast": False}
        # Of the floating type, since the backward pass makes it too.
        self.steps = self.add_weight(name="steps", initializer="zeros", overwrite_with_gradient=True, **single)
        """Number of steps of the table's optimizer."""
        self._learning_rate = None
        if not self._is_scheduled:
            rate = keras.initializers.Constant(self._rate_setting)
            self._learning_rate = self.add_weight(name="learning_rate", initializer=rate, trainable=False, **single)
        watch(self)

    def _check_whole_batch(self) -> None:
        """Refuse to train the table by code of one replica, whose gradients would be of its rows alone."""
        if current_replica() is not None and self.trainable:
            raise ReplicaError(
                f"the table of {self.name!r} is trained by whole-batch code, and this step runs on each replica, as "
                "those of strategy.run and the model_fn of an Estimator do. Train the model with fit, or look the "
                "table up with tpu.embedding.TPUEmbedding (in strategy.run) or keras.layers.Embedding (small tables)"
            )

    def _check_memory(self, shape: tuple[int, ...]) -> None:
        """Refuse a table that the cores of the strategy in scope, or this machine, cannot hold."""
        strategy = CURRENT.get()
        if strategy is None:
            return
        cores, limit_bytes = strategy.num_replicas_in_sync, strategy.backend.memory_bytes
        arrays = 1 + len(self.row_optimizer.slots)
        size_bytes = math.prod(shape) * jnp.dtype(self.variable_dtype).itemsize * arrays
        is_virtual = strategy.system.topology.is_virtual
        pieces = 1 if is_virtual or shape[0] % cores else cores
        if size_bytes <= limit_bytes * pieces:
            return
        place = "this machine, whose memory all virtual cores share," if is_virtual else "a core"
        raise SettingError(
            f"the table of {self.name!r} takes {units.format_bytes(size_bytes)} with the slots of "
            f"{self.row_optimizer.name}, {units.format_bytes(size_bytes / pieces)} in {place} which has "
            f"{units.format_bytes(limit_bytes)}. Use more cores, a smaller output_dim, an optimizer with fewer slots "
            "(SGD, Adagrad), or hash the ids into fewer (tpu.pipeline.hash_ids). To learn which TPU slice holds it, "
            "make the model within tpu.shapes_only(), and type tpu.plan(model, batch)"
        )

    @property
    def _rate_setting(self) -> Any:
        """The learning rate of the optimizer: a schedule, or a number."""
        return learning_rate_of(self.table_optimizer) if self._first_rate is None else self._first_rate

    @property
    def follows_no_rate(self) -> bool:
        """Whether nothing has changed the learning rate: no schedule, no assignment."""
        return not self.has_own_rate and not self._is_scheduled

    @property
    def _is_scheduled(self) -> bool:
        return isinstance(self._rate_setting, keras.optimizers.schedules.LearningRateSchedule)

    @property
    def table_variables(self) -> list[Any]:
        """The variables with a row for each row of the table: the table and its slots."""
        return [self._table, *self._slots]

    @property
    def step_variables(self) -> list[Any]:
        """The variables of `table_of`: the table, its slots, the step count, and a learning rate that is a number."""
        rate = [] if self._learning_rate is None else [self._learning_rate]
        return [*self.table_variables, self.steps, *rate]

    def table_of(self, values: list[Any]) -> TableArrays:
        """Return the table of the next step, given the values of `step_variables`."""
        slots = len(self._slots)
        rows, steps = values[0], values[1 + slots]
        rate = values[-1] if self._learning_rate is not None else self._rate_setting(jax.lax.stop_gradient(steps))
        rate = jnp.asarray(_keras.array_of(rate), rows.dtype)
        return TableArrays(rows, tuple(values[1 : 1 + slots]), rate, steps + 1)

    def values_of(self, table: TableArrays, is_next: bool) -> list[Any]:
        """Return the values of `step_variables` after a call.

        Args:
            table: the table after the call.
            is_next: whether the call counts as a step of the optimizer.
        """
        rate = [] if self._learning_rate is None else [table.learning_rate]
        return [table.rows, *table.slots, table.step if is_next else table.step - 1, *rate]

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the table; assign a number to change it."""
        if self._learning_rate is not None:
            return self._learning_rate
        return self._rate_setting(self.steps if self.built else 0) if self._is_scheduled else self._rate_setting

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        if self._is_scheduled:
            raise ProgramError(
                f"the learning rate of {self.name!r} follows {type(self._rate_setting).__name__}, so it cannot be "
                "assigned: make the table's optimizer with a number, such as Adam(0.001)"
            )
        if isinstance(value, bool) or not isinstance(
            value, int | float | np.number | np.ndarray | jax.Array | keras.Variable
        ):
            raise SettingError(f"the learning rate of {self.name!r} must be a number, not {value!r}")
        self.has_own_rate = True
        if self._learning_rate is None:
            self._first_rate = float(value)
        else:
            self._learning_rate.assign(value)

    def look_up(self, features: list[FeatureBags], is_marked: bool) -> list[jax.Array]:
        """Return the embeddings of each feature in the layer's compute dtype.

        Args:
            features: the bags of each feature.
            is_marked: whether bags with a bad id become NaN.

        Raises:
            ReplicaError: code of one replica would train the table.
            ProgramError: the ids are those of `jax.vmap`.
        """
        self._check_whole_batch()
        bags = [feature.bags for feature in features]
        if any(_jax.is_mapped(array) for array in jax.tree.leaves(bags)):
            raise ProgramError(
                f"{self.name!r} is called inside jax.vmap, where each call would make a table of its own: call it with "
                "all ids at once"
            )
        table = self.table_of([variable.value for variable in self.step_variables])
        sums: Any = look_up_to_train(self.row_optimizer, self.passes, table, bags)
        pairs = zip(features, sums, strict=True)
        return [feature.result(total.astype(self.compute_dtype), is_marked) for feature, total in pairs]

    def read_rows(self) -> jax.Array:
        """Return the rows of the table now. Their gradient is refused: it would be added to the new table."""
        return _read(self.name, self._table.value)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _read(name: str, rows: jax.Array) -> jax.Array:
    del name
    return rows


def _read_forward(name: str, rows: jax.Array) -> tuple[jax.Array, None]:
    return _read(name, rows), None


def _refuse_gradient(name: str, residuals: None, gradient: jax.Array) -> tuple[jax.Array]:
    del residuals, gradient
    raise ProgramError(
        f"the loss depends on the embeddings of {name!r} as an array, which has no gradient: a step updates the rows "
        "that it looks up. Call the layer, or stop the gradient: jax.lax.stop_gradient(table.embeddings)"
    )


_read.defvjp(_read_forward, _refuse_gradient)
