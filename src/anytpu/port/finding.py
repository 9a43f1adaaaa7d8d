"""`Finding`: a line of a program that its author has to look at."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """What the porter has to say about a line of the old program.

    Attributes:
        line: the line, from 1.
        old: what stands there.
        advice: what to type instead, and why.
        kind: "by hand" is left as it was and has to be changed; "note" was changed, and is worth a look.
    """

    line: int
    old: str
    advice: str
    kind: Literal["by hand", "note"] = "by hand"
