"""`Remembered`: what was made of an object, for as long as the object lives.

Idea: a program is traced once and an image is decoded once, however often they are used. Objects count by identity, so
none of them need be hashable.

Rule: a value must not hold its object, or neither is ever freed.
"""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """Values by the object that each was made of.

    Example:
        >>> class Model: pass
        >>> sizes, model = Remembered(), Model()
        >>> sizes.keep(model, 12), sizes.get(model), len(sizes)
        (12, 12, 1)
        >>> del model
        >>> len(sizes)
        0
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], Value]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, one: Any) -> Value | None:
        """Return what was kept of an object, or None."""
        entry = self._entries.get(id(one))
        return entry[1] if entry is not None and entry[0]() is one else None

    def keep(self, one: Any, value: Value) -> Value:
        """Keep a value until an object dies, and return it.

        Raises:
            TypeError: the object cannot be weakly referenced.
        """
        entries, key = self._entries, id(one)

        def forget(reference: weakref.ref[Any]) -> None:
            # This may run in any thread at any moment, also when another object has the same address already.
            entry = entries.get(key)
            if entry is not None and entry[0] is reference:
                del entries[key]

        entries[key] = weakref.ref(one, forget), value
        return value
