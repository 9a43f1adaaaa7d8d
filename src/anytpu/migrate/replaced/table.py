"""Table of replacements: the names of TensorFlow's TPU programs, and the anytpu code that replaces them.

Idea: one table, `table.toml`, serves three readers. `anytpu port` rewrites programs by it, `docs/migrate.md` is
generated from it, and names such as `tpu.GradientTape` raise an error that quotes it.
"""

from __future__ import annotations

import dataclasses
import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

How = Literal["rename", "call", "drop", "pattern", "method", "same", "hand"]
"""The porter's way of rewriting the old line; table.toml explains each."""


@dataclasses.dataclass(frozen=True)
class Replacement:
    """The replacement of one name, or of several names with the same counterpart. table.toml explains the attributes.

    Attributes:
        names: the old names, with their homes.
        old: an example of an old line.
        new: the code that replaces it; "" for none.
        how: the porter's way of rewriting it.
        target: the new name, expression or template.
        host: the target in functions of data sets; "" for `target`.
        parameters: for a call, the old parameters in order, each with the template text for a missing argument; None
            for a required parameter.
        keywords: keyword arguments that are renamed, or dropped (None).
        note: further information, one sentence.
        also: further attributes of `anytpu` whose error quotes this row.
        line: the replacement in one line, where `new` has several.
    """

    names: tuple[str, ...]
    old: str
    new: str
    how: How
    target: str = ""
    host: str = ""
    parameters: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    keywords: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    note: str = ""
    also: tuple[str, ...] = ()
    line: str = ""


@functools.cache
def _sections() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("table.toml").read_text(encoding="utf-8"))


@functools.cache
def replacements() -> dict[str, tuple[Replacement, ...]]:
    """Return every row, by section of the page."""
    shared, sections = _sections()["shared"], {t: rows for t, rows in _sections().items() if isinstance(rows, list)}
    return {title: tuple(_replacement(shared, **row) for row in rows) for title, rows in sections.items()}


def advice(name: str, /, **parts: Any) -> str:
    """Return a text of the table's [advice], with its parts filled in."""
    text = _sections()["advice"][name]
    return text.format(**parts) if parts else text


def facts(name: str) -> Any:
    """Return what the table's [facts] has under a name: a dictionary of names."""
    return _sections()["facts"][name]


def _replacement(
    shared: Mapping[str, str],
    *,
    old: str,
    new: str | None = None,
    names: list[str] | tuple[str, ...] = (),
    homes: list[str] | tuple[str, ...] = ("",),
    how: How = "rename",
    target: str = "",
    parameters: str = "",
    keywords: str = "",
    also: str = "",
    **texts: str,
) -> Replacement:
    whole = tuple(home + name for name in names for home in homes)
    if new is None:
        new = _renamed(whole, old, target) if how == "rename" else old if how == "same" else ""
    return Replacement(
        whole,
        old,
        new,
        how,
        target,
        parameters=_pairs(parameters),
        keywords=_pairs(keywords.format_map(shared)),
        also=tuple(also.split()),
        **texts,
    )


def _renamed(names: tuple[str, ...], old: str, target: str) -> str:
    shown = next(f"{prefix}{name}" for name in names for prefix in ("tf.compat.v1.", "tf.") if f"{prefix}{name}" in old)
    return old.replace(shown, target)


def _pairs(text: str) -> dict[str, str | None]:
    """Read `x, y=0` as {"x": None, "y": "0"}."""
    pairs = (part.partition("=") for part in text.split(", ") if part)
    return {name: value if equal else None for name, equal, value in pairs}


def advice_for(attribute: str) -> str | None:
    """Return the error text for a TensorFlow name used on anytpu; None when the table has no such name.

    Args:
        attribute: the attribute requested of anytpu, such as "GradientTape".

    Example:
        >>> print(advice_for("set_random_seed"))
        anytpu has no set_random_seed: in place of tf.set_random_seed write `keras.utils.set_random_seed(1)`. \
`anytpu docs migrate` has the rest
    """
    for row in (row for rows in replacements().values() for row in rows):
        old = next((name for name in row.names if name.rpartition(".")[2] == attribute), None)
        if old is not None or attribute in row.also:
            advice = f"in place of tf.{(old or attribute).lstrip('.')} {advice_of(row, attribute)}"
            return f"anytpu has no {attribute}: {advice}. `anytpu docs migrate` has the rest"
    return None


def advice_of(row: Replacement, attribute: str = "...") -> str:
    """Return the advice that replaces an old line, as one line of text.

    Args:
        row: the replacement.
        attribute: the name in the row, if the row has many names.
    """
    line = "" if row.how == "drop" else row.line or row.new
    if "*" in row.target:
        line = row.target.replace("*", attribute)
    note = f" ({row.note})" if row.note else ""
    return f"write `{line}`{note}" if line else f"write nothing{note.replace('nothing: ', '')}"
