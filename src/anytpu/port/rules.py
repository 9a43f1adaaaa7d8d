"""Look up the table's rules by name."""

from __future__ import annotations

import functools

from anytpu._replaced import REPLACEMENTS, Replacement


@functools.cache
def rules() -> dict[str, Replacement]:
    """Map each old name to its row; the key of a method starts with a dot."""
    return {name: row for rows in REPLACEMENTS.values() for row in rows for name in row.names}


def rule_of(name: str) -> tuple[str, Replacement] | None:
    """Return the table's longest prefix of a dotted name, and its row; None if there is none.

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
