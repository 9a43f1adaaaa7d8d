"""The cost of a predicted run: on demand, and on spot machines with the time that pre-emptions take.

Idea: a slice is paid for by the chip and the hour, so a step costs its time. On spot the hour is cheaper and the run
longer. A pre-emption costs the unsaved work and the time to start again, and a save costs time too. One interval
between saves minimises the sum.

Rule: slices are rented whole, so all chips of the target are paid for, idle ones included. Storage, the network and
virtual machines that are billed beside a TPU are not included. Without a price the cost is None, never 0.

Pre-emptions come at random at a steady rate (exponential times between them, mean `M`), as in J. T. Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22(3),
2006, which refines J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
With `d` for a save, `R` for a restart and `T` for the work, in seconds:

    best interval   t = sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d   for d < 2M, else M
    time            M e^(R/M) (e^((t + d)/M) - 1) T / t
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from anytpu.planning.records.cost import Cost, Price
from anytpu.planning.records.target import Target

CHECKPOINT_S = 30.0
"""Assumed duration of a save: a few gigabytes to a bucket."""

RESTART_S = 600.0
"""Assumed time until a pre-empted run computes again: a machine starts, a program compiles, weights are loaded."""

ASSUMED_PREEMPTIONS_PER_HOUR = 0.125
"""Assumed rate if none is known: one pre-emption in 8 hours. The cloud publishes none; the old kind of pre-emptible TPU
was taken away after 24 hours at the latest."""


def cost_of(
    target: Target,
    step_s: float | None,
    batch_size: int | None,
    examples: int | None,
    epochs: int | None,
    prices: Mapping[str, Price],
) -> Cost | None:
    """Return the cost of a run.

    Args:
        target: the slice that is rented.
        step_s: predicted time of a step, seconds; None if it is not known: then only the cost of an hour is known.
        batch_size: examples of a step over all devices; None for a program without rows.
        examples: examples of an epoch, or None: then only the cost of a step is known.
        epochs: epochs of the run, or None.
        prices: the result of `prices.read_prices`.

    Returns:
        The cost, with None in place of dollars if the chip is not listed. None if no price of the chip is known at all.

    Example:
        >>> cost = cost_of(target_named("v3-8"), 0.1, 1024, examples=1_281_167, epochs=90, prices=read_prices())
        >>> cost.usd_per_hour, round(cost.usd_per_run, 2)
        (8.0, 25.04)
    """
    price = prices.get(target.chip.name)
    if price is None:
        return None
    steps = math.ceil(examples / batch_size) if examples and batch_size else None
    epoch_s = steps * step_s if steps and step_s else None
    run_s = epoch_s * epochs if epoch_s and epochs else None
    usd_per_hour = _times(price.usd_per_chip_hour, target.chips)
    usd_per_s = None if usd_per_hour is None else usd_per_hour / 3600
    cost = Cost(
        price=price,
        usd_per_hour=usd_per_hour,
        usd_per_step=_times(usd_per_s, step_s),
        usd_per_epoch=_times(usd_per_s, epoch_s),
        usd_per_run=_times(usd_per_s, run_s),
        run_s=run_s,
    )
    return cost if run_s is None else _with_spot(cost, target, run_s)


def _with_spot(cost: Cost, target: Target, run_s: float) -> Cost:
    if cost.price.spot_usd_per_chip_hour is None:
        return cost
    price = _with_rate(cost.price)
    assert price.preemptions_per_hour is not None and price.spot_usd_per_chip_hour is not None
    run = spot_run(run_s, price.preemptions_per_hour, CHECKPOINT_S, RESTART_S)
    if not math.isfinite(run.run_s):
        return dataclasses.replace(cost, price=_with_note(price, "on spot this run is not expected to end"))
    return dataclasses.replace(
        cost,
        price=price,
        spot_usd_per_run=price.spot_usd_per_chip_hour * target.chips * run.run_s / 3600,
        spot_run_s=run.run_s,
        checkpoint_every_s=run.checkpoint_every_s,
    )


def _with_rate(price: Price) -> Price:
    """Return the price with a rate of pre-emptions: its own, or an assumed one, which its note then states."""
    if price.preemptions_per_hour is not None:
        return price
    every_hours = 1 / ASSUMED_PREEMPTIONS_PER_HOUR
    assumed = dataclasses.replace(price, preemptions_per_hour=ASSUMED_PREEMPTIONS_PER_HOUR)
    return _with_note(assumed, f"no rate of pre-emptions is published: one in {every_hours:g} hours is assumed")


def _with_note(price: Price, sentence: str) -> Price:
    return dataclasses.replace(price, note=f"{price.note}; {sentence}" if price.note else sentence)


def _times(rate: float | None, amount: float | None) -> float | None:
    return None if rate is None or amount is None else rate * amount


@dataclasses.dataclass(frozen=True, slots=True)
class SpotRun:
    """A run with pre-emptions.

    Attributes:
        run_s: expected duration, seconds; infinity if the run would never end.
        checkpoint_every_s: seconds of work between two saves; None if no save is worth its time.
    """

    run_s: float
    checkpoint_every_s: float | None


def best_interval_s(checkpoint_s: float, mean_between_s: float) -> float:
    """Return the seconds of work between two saves that lose the least time.

    Args:
        checkpoint_s: duration of a save, seconds.
        mean_between_s: mean time between two pre-emptions, seconds.

    Example:
        >>> round(best_interval_s(checkpoint_s=300, mean_between_s=24 * 3600) / 60)
        117
    """
    if checkpoint_s >= 2 * mean_between_s:
        return mean_between_s
    ratio = checkpoint_s / (2 * mean_between_s)
    first_order_s = math.sqrt(2 * checkpoint_s * mean_between_s)
    return first_order_s * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_s


def spot_run(work_s: float, preemptions_per_hour: float, checkpoint_s: float, restart_s: float) -> SpotRun:
    """Return the expected course of a run with pre-emptions and the best interval between saves, without a save at its
    end.

    Args:
        work_s: duration without interruption, seconds.
        preemptions_per_hour: number of interruptions an hour; 0 for never.
        checkpoint_s: duration of a save, seconds.
        restart_s: time from a pre-emption until the run computes again, seconds.
    """
    if preemptions_per_hour == 0:
        return SpotRun(work_s, None)
    mean_s = 3600.0 / preemptions_per_hour
    # Equal parts no longer than the best interval. No save follows the last one.
    parts = math.ceil(work_s / max(best_interval_s(checkpoint_s, mean_s), 1e-3)) or 1
    part_s = work_s / parts
    try:
        # expm1 is exact for parts that are much shorter than the mean time between pre-emptions.
        rounds = (parts - 1) * math.expm1((part_s + checkpoint_s) / mean_s) + math.expm1(part_s / mean_s)
        run_s = mean_s * math.exp(restart_s / mean_s) * rounds
    except OverflowError:
        run_s = math.inf
    return SpotRun(run_s, part_s if parts > 1 else None)
