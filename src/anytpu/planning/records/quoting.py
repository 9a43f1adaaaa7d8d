"""`quoted`: a value from a file for an error text, cut if it is long."""

from __future__ import annotations

from typing import Any

MAX_LENGTH = 80


def quoted(value: Any, length: int = MAX_LENGTH) -> str:
    """Return a value as Python writes it, cut after so many characters.

    Args:
        value: text, a number, or anything else.
        length: maximum number of characters.

    Example:
        >>> quoted("v3"), quoted("v" * 100, 8)
        ("'v3'", "'vvvvvvvv...'")
    """
    if isinstance(value, str):
        return repr(value if len(value) <= length else f"{value[:length]}...")
    text = repr(value)
    return text if len(text) <= length else f"{text[:length]}..."
