"""`Latencies`: delays of the time model that the paper does not give.

Rule: all programs use the same values. None is fitted to an application; each can be changed.
"""

from __future__ import annotations

import dataclasses
import math

from anytpu.errors import SettingError


@dataclasses.dataclass(frozen=True)
class Latencies:
    """Delays in addition to the work itself.

    Attributes:
        drain_cycles: cycles from a product's last input row to its last sum in the accumulators; it delays only
            consumers of the sums. None: twice the side of the array, once across and once down.
        sync_cycles: cycles from the end of the last work that a `Sync` waits for to the start of the waiting work.
        batch_s: seconds of the host per batch, to start the program and to be notified of its end.

    Raises:
        SettingError: an attribute is not a number, or negative, or not finite.
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
