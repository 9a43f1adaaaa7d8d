"""Look up the table's rules by name."""

from __future__ import annotations

import functools
import re

from anytpu.migrate.port.known import exists
from anytpu.migrate.replaced.table import Replacement, facts, replacements

_PRIVATE = re.compile(r"^(contrib\.\w+)\.python\..*\.(?=\w+$)")


@functools.cache
def rules() -> dict[str, Replacement]:
    """Map each old name to its row; the key of a method starts with a dot."""
    return {name: row for rows in replacements().values() for row in rows for name in row.names}


def rule_of(name: str) -> tuple[str, Replacement] | None:
    """Return the table's longest prefix of a dotted name, and its row; None if there is none.

    Args:
        name: a canonical name, such as "keras.layers.Dense".

    Example:
        >>> rule_of("distribute.ReduceOp.SUM")[0], rule_of("no.such.name")
        ('distribute.ReduceOp', None)
    """
    public = keras_name(name) if name.startswith("keras.") else None
    if public in rules():
        return name, rules()[public]
    public = _PRIVATE.sub(r"\1.", name)
    if public != name and public in rules():  # `contrib.layers.python.layers.initializers.xavier_initializer`
        return name, rules()[public]
    while name:
        if name in rules():
            return name, rules()[name]
        name = name.rpartition(".")[0]
    return None


def new_name(old: str) -> str | None:
    """Return the new full name for an old one; None if the table has none, or a new name that does not exist.

    Example:
        >>> new_name("keras.layers.experimental.preprocessing.RandomFlip"), new_name("keras.layers.Nothing")
        ('keras.layers.RandomFlip', None)
    """
    rule = rule_of(old)
    if rule is None or rule[1].how not in ("rename", "call", "pattern"):
        return None
    key, row = rule
    target, rest = row.target.partition("(")[0].replace("*", key.rpartition(".")[2]), old.removeprefix(key)
    if target.startswith('"'):  # a type, which is its name
        return target if rest in ("", ".name") else None
    name = target + rest
    if name.partition(".")[0] == "keras":
        return name if name.startswith("keras.__version__") else keras_name(name)
    return name if name and exists(name) else None


def keras_name(name: str) -> str | None:
    """Return the public name in Keras 3 for one of Keras 2; None if there is none.

    Keras 2 has many private homes for a public name, such as `keras.layers.core.Dense`.
    """
    if exists(name):
        return name
    parts = name.split(".")
    homes = (parts[1], *facts("homes of Keras 2").get(parts[1], ()))
    names = [f"keras.{home}.{parts[-1]}" for home in homes] if len(parts) > 2 else []
    return next((public for public in names if exists(public)), None)
