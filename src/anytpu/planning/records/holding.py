"""`Holding`: a slice that would hold a step which does not fit, with the least that the step takes and costs there."""

from __future__ import annotations

import dataclasses
from typing import Any

from anytpu.planning.records.cost import Price
from anytpu.planning.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Holding:
    """The smallest slice of a chip that would hold a step which does not fit. Reckoned, not compiled.

    Attributes:
        target: the slice.
        batch_size: examples of the step over all devices, or None.
        need_bytes: about what a device needs.
        limit_bytes: what a device has.
        least_step_s: time of a step at the peak of the chips' units, or of their memory if longer: a floor; None where
            it is not known.
        price: of its chip, or None where none is known.
    """

    target: Target
    batch_size: int | None
    need_bytes: int
    limit_bytes: int
    least_step_s: float | None = None
    price: Price | None = None

    @property
    def usd_per_hour(self) -> float | None:
        """Price of the slice on demand, or None where the chip is not listed."""
        each = self.price.usd_per_chip_hour if self.price else None
        return None if each is None else self.target.chips * each

    @property
    def least_usd_per_step(self) -> float | None:
        """The least that a step costs on demand, or None."""
        if self.least_step_s is None or self.usd_per_hour is None:
            return None
        return self.usd_per_hour * self.least_step_s / 3600

    def to_record(self) -> dict[str, Any]:
        """Return everything as what JSON has."""
        names = ("batch_size", "need_bytes", "limit_bytes", "least_step_s", "usd_per_hour", "least_usd_per_step")
        return {"tpu": self.target.name, **{name: getattr(self, name) for name in names}}
