"""Values of a block of code, such as the strategy in whose scope it is."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TypeVar

Value = TypeVar("Value")


@contextlib.contextmanager
def value_within(variable: contextvars.ContextVar[Value], value: Value) -> Iterator[Value]:
    """In a block, give a context variable a value.

    Example:
        >>> depth = contextvars.ContextVar("depth", default=0)
        >>> with value_within(depth, 1):
        ...     depth.get()
        1
        >>> depth.get()
        0
    """
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
