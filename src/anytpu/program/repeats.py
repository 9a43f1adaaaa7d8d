"""`Repeats`: how often equal blocks of layers follow each other in a job, and the job with fewer of them.

Idea: what n equal blocks take grows with n in a straight line, so a job that is too large to be compiled is known from
two that are not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Repeats:
    """Equal blocks of layers of a job, one after the other.

    Attributes:
        count: how many there are, at least 2.
        block: the names of the layers of the first one.
        with_count: makes the job with so many of them, 1 to `count`; what it returns is a job as `program.of` takes it.
    """

    count: int
    block: tuple[str, ...]
    with_count: Callable[[int], Any] = dataclasses.field(repr=False)
