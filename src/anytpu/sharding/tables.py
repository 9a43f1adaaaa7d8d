"""Embedding tables in a layout: their rows are split over all cores.

Idea: a table may be larger than a core, and a step uses few of its rows. So no layout leaves a table whole by itself.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping

from anytpu._contexts import value_within
from anytpu.sharding.layouts import ModelLayout, Spec

SPLIT_TABLES: contextvars.ContextVar[frozenset[tuple[int, ...]]] = contextvars.ContextVar(
    "split_tables", default=frozenset()
)
"""Shapes of the tables whose rows the layout splits over all devices, while a step is traced for it."""


@contextlib.contextmanager
def tracing_for(layout: ModelLayout, tables: Iterable[tuple[str, tuple[int, ...]]]) -> Iterator[None]:
    """Return a context in which a step is traced for a layout.

    Args:
        layout: the layout, from `with_tables`.
        tables: name and shape of each table and slot.
    """
    sizes = dict(layout.axes)
    split = [
        shape
        for name, shape in tables
        if any(spec := layout.spec_of(name, shape) or ()) and spec == split_rows_of_table(shape, sizes)
    ]
    with value_within(SPLIT_TABLES, frozenset(split)):
        yield


def with_tables(layout: ModelLayout, tables: Collection[str]) -> ModelLayout:
    """Return a layout that splits the rows of tables over all cores, unless a rule of the user splits them.

    A literal layout and one that was found for one model are returned unchanged.

    Args:
        layout: the layout.
        tables: names of the arrays of the state that are tables, or slots of tables.
    """
    if not tables or layout.is_literal or layout.specs:
        return layout
    sizes, names = dict(layout.axes), frozenset(tables)

    def spec_of(name: str, shape: tuple[int, ...]) -> Spec | None:
        # "fsdp" would split the columns of a table whose rows it cannot split.
        spec = layout.spec_of(name, shape) if name not in names or layout.name != "fsdp" else None
        return spec or split_rows_of_table(shape, sizes) if name in names else spec

    return dataclasses.replace(layout, spec_of=spec_of)


def split_rows_of_table(shape: tuple[int, ...], sizes: Mapping[str, int]) -> Spec:
    """Return the partition of a table's rows over all mesh axes; whole if the cores do not divide its rows.

    Args:
        shape: shape of the table.
        sizes: size of each mesh axis.

    Example:
        >>> split_rows_of_table((1024, 8), {"data": 4, "model": 2}), split_rows_of_table((10, 8), {"data": 4})
        ((('data', 'model'), ()), ())
    """
    return () if shape[0] % math.prod(sizes.values()) else (tuple(sizes), ())
