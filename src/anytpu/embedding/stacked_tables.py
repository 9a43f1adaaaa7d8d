"""`StackedTables`: tables of one width with one optimizer, stored as one table.

Idea: each lookup and each update costs a fixed time. A recommender has dozens of small tables, and those of one width
with the same optimizer are looked up and updated together. The ids of a table are offset by its first row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from anytpu.embedding.configs import TableConfig
from anytpu.embedding.row_optimizers import as_optimizer, learning_rate_of, row_optimizer
from anytpu.embedding.table_layer import MAX_ROWS, TableLayer, stored_rows
from anytpu.errors import SettingError


class StackedTables(TableLayer):
    """Tables of one width with one optimizer.

    Args:
        tables: the tables.
        optimizer: their optimizer.
        settings: arguments of `keras.layers.Layer`.
    """

    def __init__(self, tables: Sequence[TableConfig], optimizer: Any, **settings: Any) -> None:
        super().__init__(sum(table.vocabulary_size for table in tables), tables[0].dim, optimizer, **settings)
        self._tables = tuple(tables)
        starts = np.cumsum([0, *(table.vocabulary_size for table in tables)])
        self._offsets = {id(table): int(start) for table, start in zip(tables, starts, strict=False)}

    def build(self, input_shape: Any = None) -> None:
        """Make the variables, with the initial embeddings of each table."""
        del input_shape
        self.add_table(self._initial_rows)
        self.built = True

    def _initial_rows(self, shape: tuple[int, ...], dtype: Any) -> Any:
        rest = np.zeros((shape[0] - self.input_dim, shape[1]), dtype)
        return jnp.concatenate([*(table.first_rows(dtype) for table in self._tables), rest])

    def has(self, table: TableConfig) -> bool:
        """Return whether a table is in the stack."""
        return id(table) in self._offsets

    def offset(self, table: TableConfig) -> int:
        """Return the row of the first id of a table."""
        return self._offsets[id(table)]

    def rows_of(self, table: TableConfig) -> Any:
        """Return the embeddings of a table now, `(vocabulary_size, dim)`."""
        offset = self.offset(table)
        return self.read_rows()[offset : offset + table.vocabulary_size]

    def assign_rows(self, table: TableConfig, value: Any) -> None:
        """Replace the embeddings of a table.

        Raises:
            SettingError: the value has another shape.
        """
        array, shape = np.asarray(value), (table.vocabulary_size, table.dim)
        if array.shape != shape:
            raise SettingError(f"the table {table.name!r} has the shape {shape}, not {array.shape}")
        offset = self.offset(table)
        self._table.assign(self._table.value.at[offset : offset + len(array)].set(array))


@dataclasses.dataclass(frozen=True)
class TableGroup:
    """Tables that are stored as one.

    Attributes:
        tables: the tables.
        optimizer: their optimizer.
    """

    tables: tuple[TableConfig, ...]
    optimizer: Any

    @property
    def name(self) -> str:
        """The first part of the names of the variables."""
        return "_".join(str(table.name) for table in self.tables[:3])

    @property
    def rows(self) -> dict[str, slice]:
        """The rows of each table, by its name."""
        ends = np.cumsum([table.vocabulary_size for table in self.tables])
        pairs = zip(self.tables, ends, strict=True)
        return {str(table.name): slice(int(end) - table.vocabulary_size, int(end)) for table, end in pairs}

    def made(self) -> StackedTables:
        """Make the tables as one."""
        stack = StackedTables(self.tables, self.optimizer, name=self.name)
        stack.build()
        return stack


def groups_of(tables: Sequence[TableConfig], optimizer: Any) -> list[TableGroup]:
    """Return groups of tables of one width and one optimizer, in the order of their first tables.

    A group has no more rows than ids of 32 bits; further tables begin another group.

    Args:
        tables: the tables.
        optimizer: optimizer of tables without one.

    Raises:
        SettingError: an optimizer has no update of single rows, or a table has more rows than ids of 32 bits.
    """
    groups: list[list[TableConfig]] = []
    optimizers: list[Any] = []
    newest: dict[tuple, int] = {}
    for table in tables:
        if not _fits([table]):
            raise SettingError(
                f"the table {table.name!r} has {table.vocabulary_size:,} rows, and ids are of 32 bits: a table has at "
                f"most {MAX_ROWS:,} rows. Split it into tables of fewer ids, or hash the ids into fewer"
            )
        own = as_optimizer(optimizer if table.optimizer is None else table.optimizer)
        key = table.dim, row_optimizer(own), learning_rate_of(own)
        if key in newest and _fits([*groups[newest[key]], table]):
            groups[newest[key]].append(table)
            continue
        newest[key] = len(groups)
        groups.append([table])
        optimizers.append(own)
    return [TableGroup(tuple(group), own) for group, own in zip(groups, optimizers, strict=True)]


def _fits(tables: Sequence[TableConfig]) -> bool:
    return stored_rows(sum(table.vocabulary_size for table in tables), tables[0].dim) <= MAX_ROWS
