"""`Repeats`: consecutive equal blocks of layers in a job, and a way to make the job with fewer of them.

Idea: the cost of n equal blocks is linear in n. So the cost of a job that is too large to compile follows from two
smaller jobs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Repeats:
    """Consecutive equal blocks of layers of a job.

    Attributes:
        count: number of blocks, at least 2.
        block: names of the layers in the first block.
        with_count: returns the job with a given number of blocks, 1 to `count`; a job for `program.of`.
    """

    count: int
    block: tuple[str, ...]
    with_count: Callable[[int], Any] = dataclasses.field(repr=False)
