"""`Latencies`: what the time model assumes of delays that the paper does not give.

Rule: one set of numbers for all programs. None of them is fitted to an application; each can be turned.
"""

from __future__ import annotations

import dataclasses
import math

from anytpu.errors import SettingError


@dataclasses.dataclass(frozen=True)
class Latencies:
    """Delays beside the work itself.

    Attributes:
        drain_cycles: from the last row of a product going in to its last sum being in the accumulators; only who waits
            for the sums sees it. None: twice the side of the array, once across and once down.
        sync_cycles: from the end of the last thing that a `Sync` waits for to the start of what waited.
        batch_s: the host's, once a batch: it starts the program, and is told of its end.

    Raises:
        SettingError: a number is negative, or no number.
    """

    drain_cycles: float | None = None
    sync_cycles: float = 0.0
    batch_s: float = 0.0

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "drain_cycles":
                continue
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise SettingError(f"{field.name} of the time model must be a number of 0 or more, not {value!r}.")
