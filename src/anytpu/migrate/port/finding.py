"""`Finding`: a line of the old program for its author to check."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """The porter's advice for a line of the old program.

    Attributes:
        line: line number, from 1; in a notebook, of the cell.
        old: the old code, its first line.
        advice: the code to type instead, and the reason.
        kind: "by hand": not changed, the author must change it; "note": changed, worth a check.
        cell: number of the notebook's code cell, from 1; 0 for a program.
    """

    line: int
    old: str
    advice: str
    kind: Literal["by hand", "note"] = "by hand"
    cell: int = 0


def place_of(line: int, cell: int) -> str:
    """Return a place as text.

    Example:
        >>> place_of(7, 0), place_of(7, 3)
        ('line 7', 'cell 3, line 7')
    """
    return f"cell {cell}, line {line}" if cell else f"line {line}"
