"""The cost of a run: `Price` of a chip, `Cost` of a step, an epoch, a run, on demand and spot."""

from __future__ import annotations

import dataclasses


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
