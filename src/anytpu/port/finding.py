"""`Finding`: a line of the old program for its author to check."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """The porter's advice for a line of the old program.

    Attributes:
        line: line number, from 1.
        old: the old code, its first line.
        advice: the code to type instead, and the reason.
        kind: "by hand": not changed, the author must change it; "note": changed, worth a check.
    """

    line: int
    old: str
    advice: str
    kind: Literal["by hand", "note"] = "by hand"
