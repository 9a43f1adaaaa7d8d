"""`Holding`: a slice that would hold a step which does not fit, with the minimum time and cost of the step there."""

from __future__ import annotations

import dataclasses
from typing import Any

from anytpu.planning.records.cost import Price
from anytpu.planning.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """The smallest slice of a chip that would hold a step which does not fit. Computed from other compilations, not
    compiled.

    Attributes:
        target: the slice.
        batch_size: examples of the step over all devices, or None.
        need_bytes: approximate need of a device, bytes.
        limit_bytes: memory limit of a device, bytes.
        least_step_s: time of a step at the peak of the chips' units, or of their memory if that is longer, seconds: a
            floor. None if it is not known.
        price: price of its chip, or None.
    """

    target: Target
    batch_size: int | None
    need_bytes: int
    limit_bytes: int
    least_step_s: float | None = None
    price: Price | None = None

    @property
    def usd_per_hour(self) -> float | None:
        """Price of the slice on demand, dollars an hour; None if the chip is not listed."""
        each = self.price.usd_per_chip_hour if self.price else None
        return None if each is None else self.target.chips * each

    @property
    def least_usd_per_step(self) -> float | None:
        """Minimum cost of a step on demand, dollars, or None."""
        if self.least_step_s is None or self.usd_per_hour is None:
            return None
        return self.usd_per_hour * self.least_step_s / 3600

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        names = ("batch_size", "need_bytes", "limit_bytes", "least_step_s", "usd_per_hour", "least_usd_per_step")
        return {"tpu": self.target.name, **{name: getattr(self, name) for name in names}}
