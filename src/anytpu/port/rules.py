"""The rules of the table, found by name."""

from __future__ import annotations

import functools

from anytpu._replaced import REPLACEMENTS, Replacement


@functools.cache
def rules() -> dict[str, Replacement]:
    """Return each old name's row; methods have a dot in front."""
    return {name: row for rows in REPLACEMENTS.values() for row in rows for name in row.names}


def rule_of(name: str) -> tuple[str, Replacement] | None:
    """Return the longest name of the table that a name starts with, and its row.

    Args:
        name: a canonical name, such as "keras.layers.Dense".

    Example:
        >>> rule_of("distribute.ReduceOp.SUM")[0], rule_of("no.such.name")
        ('distribute.ReduceOp', None)
    """
    while name:
        if name in rules():
            return name, rules()[name]
        name = name.rpartition(".")[0]
    return None
