"""`StackedTables`: tables of one width with one optimizer, stored as one table.

Idea: each lookup and each update costs a fixed time. A recommender has dozens of small tables, and those of one width
with the same optimizer are looked up and updated together. The ids of a table are offset by its first row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from anytpu.embedding.bags import FeatureBags, bags_of
from anytpu.embedding.configs import TableConfig
from anytpu.embedding.row_optimizers import as_optimizer, learning_rate_of, row_optimizer
from anytpu.embedding.table_layer import MAX_ROWS, TableLayer, stored_rows
from anytpu.errors import SettingError


class StackedTables(TableLayer):
    """Tables of one width with one optimizer. Their variables are made by `build`.

    Args:
        tables: the tables. The names of the first ones are the first part of the names of the variables.
        optimizer: their optimizer.
    """

    def __init__(self, tables: Sequence[TableConfig], optimizer: Any) -> None:
        name = "_".join(str(table.name) for table in tables[:3])
        super().__init__(sum(table.vocabulary_size for table in tables), tables[0].dim, optimizer, name=name)
        self._tables = tuple(tables)
        ends = np.cumsum([table.vocabulary_size for table in tables]).tolist()
        self._rows = {id(t): slice(end - t.vocabulary_size, end) for t, end in zip(tables, ends, strict=True)}

    def build(self, input_shape: Any = None) -> None:
        """Make the variables, with the initial embeddings of each table."""
        del input_shape
        self.add_table(self._initial_rows)
        self.built = True

    def _initial_rows(self, shape: tuple[int, ...], dtype: Any) -> Any:
        rest = np.zeros((shape[0] - self.input_dim, shape[1]), dtype)
        return jnp.concatenate([*(table.first_rows(dtype) for table in self._tables), rest])

    @property
    def rows_by_name(self) -> dict[str, slice]:
        """The rows of each table, by its name."""
        return {str(table.name): self._rows[id(table)] for table in self._tables}

    def has(self, table: TableConfig) -> bool:
        """Return whether a table is in the stack."""
        return id(table) in self._rows

    def bags(self, table: TableConfig, ids: Any, weights: Any, combiner: str | None) -> FeatureBags:
        """Return the bags of a feature that uses one of the tables; see `bags_of`."""
        first = self._rows[id(table)].start
        return bags_of(ids, weights, combiner, table.vocabulary_size, self.variable_dtype, first)

    def rows_of(self, table: TableConfig) -> Any:
        """Return the embeddings of a table now, `(vocabulary_size, dim)`."""
        return self.read_rows()[self._rows[id(table)]]

    def assign_rows(self, table: TableConfig, value: Any) -> None:
        """Replace the embeddings of a table.

        Raises:
            SettingError: the value has another shape.
        """
        array, shape = np.asarray(value), (table.vocabulary_size, table.dim)
        if array.shape != shape:
            raise SettingError(f"the table {table.name!r} has the shape {shape}, not {array.shape}")
        self._table.assign(self._table.value.at[self._rows[id(table)]].set(array))


def stacks_of(tables: Sequence[TableConfig], optimizer: Any) -> list[StackedTables]:
    """Return stacks of tables of one width and one optimizer, not built, in the order of their first tables.

    A stack has no more rows than ids of 32 bits; further tables begin another stack.

    Args:
        tables: the tables.
        optimizer: optimizer of tables without one.

    Raises:
        SettingError: an optimizer has no update of single rows, or a table has more rows than ids of 32 bits.
    """
    groups: list[tuple[list[TableConfig], Any]] = []
    newest: dict[tuple, list[TableConfig]] = {}
    for table in tables:
        if not _fits([table]):
            raise SettingError(
                f"the table {table.name!r} has {table.vocabulary_size:,} rows, and ids are of 32 bits: a table has at "
                f"most {MAX_ROWS:,} rows. Split it into tables of fewer ids, or hash the ids into fewer"
            )
        own = as_optimizer(optimizer if table.optimizer is None else table.optimizer)
        key = table.dim, row_optimizer(own), learning_rate_of(own)
        if key in newest and _fits([*newest[key], table]):
            newest[key].append(table)
        else:
            newest[key] = [table]
            groups.append((newest[key], own))
    return [StackedTables(group, own) for group, own in groups]


def _fits(tables: Sequence[TableConfig]) -> bool:
    return stored_rows(sum(table.vocabulary_size for table in tables), tables[0].dim) <= MAX_ROWS
