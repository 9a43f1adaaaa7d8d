"""`quoted`: a value of a file in an error text, cut where it is long."""

from __future__ import annotations

from typing import Any

MAX_LENGTH = 80


def quoted(value: Any, length: int = MAX_LENGTH) -> str:
    """Return a value as Python writes it, at most so many characters of it.

    Args:
        value: text, a number, or anything else.
        length: the most characters that are shown.

    Example:
        >>> quoted("v3"), quoted("v" * 100, 8)
        ("'v3'", "'vvvvvvvv...'")
    """
    if isinstance(value, str):
        return repr(value if len(value) <= length else f"{value[:length]}...")
    text = repr(value)
    return text if len(text) <= length else f"{text[:length]}..."
