"""What a run costs: `Price` of a chip, `Cost` of a step, an epoch, a run, on demand and spot."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Price:
    """What an hour of one chip costs.

    Attributes:
        chip: "v3".
        usd_per_chip_hour: on demand, or None where it is not listed.
        spot_usd_per_chip_hour: pre-emptible, or None.
        preemptions_per_hour: expected pre-emptions of a slice in an hour of spot, or None when unknown.
        date: when the price was read: "2026-03".
        source: where.
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
    """What running a predicted step costs.

    Attributes:
        price: the price that was used.
        usd_per_hour: of the whole slice on demand, or None where it is not listed.
        usd_per_step: on demand, or None.
        usd_per_epoch: on demand, or None where the examples of an epoch were not given.
        usd_per_run: on demand, or None where the epochs were not given.
        run_s: time of the run without interruption, seconds, or None.
        spot_usd_per_run: pre-emptible, lost time included, or None.
        spot_run_s: expected time of the run with pre-emptions, seconds, or None.
        checkpoint_every_s: how often to save on spot so that least is lost, seconds, or None.
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
