"""The cost of a run: `Price` of a chip, `Cost` of a step, an epoch, a run, `Holding` of a slice that would hold it."""

from __future__ import annotations

import dataclasses
from typing import Any

from anytpu.planning.records.target import Target


@dataclasses.dataclass(frozen=True, slots=True)
class Price:
    """The price of an hour of one chip.

    Attributes:
        chip: name of the chip: "v3".
        usd_per_chip_hour: on demand, dollars, or None if it is not listed.
        spot_usd_per_chip_hour: pre-emptible, dollars, or None.
        preemptions_per_hour: expected pre-emptions of a slice in an hour of spot, or None if it is not known.
        date: month in which the price was read: "2026-03".
        source: source of the price.
        note: "retired: not sold to new users", or "".
    """

    chip: str
    usd_per_chip_hour: float | None
    spot_usd_per_chip_hour: float | None
    preemptions_per_hour: float | None
    date: str
    source: str
    note: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """The cost of running a predicted step.

    Attributes:
        price: the price that was used.
        usd_per_hour: cost of the whole slice on demand, dollars an hour, or None if it is not listed.
        usd_per_step: on demand, or None.
        usd_per_epoch: on demand, or None if the examples of an epoch are not known.
        usd_per_run: on demand, or None if the epochs are not known.
        run_s: time of the run without interruption, seconds, or None.
        spot_usd_per_run: pre-emptible, lost time included, or None.
        spot_run_s: expected time of the run with pre-emptions, seconds, or None.
        checkpoint_every_s: interval between saves that loses the least time on spot, seconds, or None.
    """

    price: Price
    usd_per_hour: float | None
    usd_per_step: float | None
    usd_per_epoch: float | None = None
    usd_per_run: float | None = None
    run_s: float | None = None
    spot_usd_per_run: float | None = None
    spot_run_s: float | None = None
    checkpoint_every_s: float | None = None


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
