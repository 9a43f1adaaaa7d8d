"""`Remembered`: a cache of values by object identity, with weak references to the objects.

Idea: a program is traced once and an image is decoded once, however often they are used. Objects are compared by
identity, so they need not be hashable.

Rule: a value must not reference its object, or neither is ever freed.
"""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """A cache of one value for each living object.

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

    def get(self, owner: Any) -> Value | None:
        """Return the value of an object, or None."""
        entry = self._entries.get(id(owner))
        return entry[1] if entry is not None and entry[0]() is owner else None

    def keep(self, owner: Any, value: Value) -> Value:
        """Store the value of an object until the object is freed, and return it.

        Raises:
            TypeError: the object cannot be weakly referenced.
        """
        entries, key = self._entries, id(owner)

        def forget(reference: weakref.ref[Any]) -> None:
            # The garbage collector may run this in any thread at any moment, even after another object got this id.
            entry = entries.get(key)
            if entry is not None and entry[0] is reference:
                del entries[key]

        entries[key] = weakref.ref(owner, forget), value
        return value
