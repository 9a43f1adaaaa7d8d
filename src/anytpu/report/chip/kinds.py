"""Colours of the kinds of events, the same in every plot."""

from __future__ import annotations

_COLOURS = {
    "ReadHostMemory": "c1",
    "WriteHostMemory": "c1",
    "fetch": "c4",
    "parameters": "c7",
    "table": "c7",
    "MatrixMultiply": "c0",
    "Convolve": "c0",
    "shift": "c2",
    "stall": "c3",
    "held": "c6",
    "Activate": "c5",
}


def colour_of(kind: str) -> str:
    """Return the colour of an event by its kind; unknown kinds are grey.

    Example:
        >>> colour_of("Convolve"), colour_of("wait")
        ('c0', 'c6')
    """
    return _COLOURS.get(kind, "c6")
