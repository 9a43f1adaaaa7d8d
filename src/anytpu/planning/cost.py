"""The cost of a predicted run: on demand, and on spot machines with the time that pre-emptions take.

Idea: a slice is paid for by the chip and the hour, so a step costs its time. On spot the hour is cheaper and the run
longer: work is lost and machines start again (`spot.py`).

Rule: slices are rented whole, so all chips of the target are paid for, idle ones included. Storage, the network and
virtual machines that are billed beside a TPU are not included. Without a price the cost is None, never 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from anytpu.planning.records.cost import Cost, Price
from anytpu.planning.spot import SpotRun, spot_run
from anytpu.planning.target import Target

CHECKPOINT_S = 30.0
"""How long a save is taken to last where nobody says: a few gigabytes to a bucket."""

RESTART_S = 600.0
"""How long it is taken to last, where nobody says, until a run that was pre-empted computes again: a machine that
starts, a program that compiles, weights that are loaded."""

ASSUMED_PREEMPTIONS_PER_HOUR = 0.125
"""The rate that is reckoned with where none is known: one pre-emption in 8 hours. The cloud publishes none; the old
kind of pre-emptible TPU was taken away after 24 hours at the latest."""


def cost_of(
    target: Target,
    step_s: float,
    batch_size: int | None,
    examples: int | None,
    epochs: int | None,
    prices: Mapping[str, Price],
    *,
    checkpoint_s: float = CHECKPOINT_S,
    restart_s: float = RESTART_S,
) -> Cost | None:
    """Return the cost of a run.

    Args:
        target: the slice that is rented.
        step_s: predicted time of a step, seconds.
        batch_size: examples of a step over all devices; None for a program without rows.
        examples: examples of an epoch, or None: then only the cost of a step is known.
        epochs: epochs of the run, or None.
        prices: the result of `prices.read_prices`.
        checkpoint_s: duration of a save, seconds.
        restart_s: from a pre-emption until the run computes again, seconds.

    Returns:
        The cost; with None in place of dollars where the chip is not listed. None when no price is known of the chip
        at all.

    Example:
        >>> cost = cost_of(target_named("v3-8"), 0.1, 1024, examples=1_281_167, epochs=90, prices=read_prices())
        >>> cost.usd_per_hour, round(cost.usd_per_run, 2)
        (8.0, 25.04)
    """
    price = prices.get(target.chip.name)
    if price is None:
        return None
    steps = math.ceil(examples / batch_size) if examples and batch_size else None
    epoch_s = steps * step_s if steps else None
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
    return cost if run_s is None else _with_spot(cost, target, run_s, checkpoint_s, restart_s)


def hourly_cost(target: Target, prices: Mapping[str, Price]) -> Cost | None:
    """Return the hourly cost of a slice, for a step of unknown time; None if no price is known.

    Example:
        >>> hourly_cost(target_named("v3-8"), read_prices()).usd_per_hour
        8.0
    """
    price = prices.get(target.chip.name)
    return None if price is None else Cost(price, _times(price.usd_per_chip_hour, target.chips), None)


def _with_spot(cost: Cost, target: Target, run_s: float, checkpoint_s: float, restart_s: float) -> Cost:
    if cost.price.spot_usd_per_chip_hour is None:
        return cost
    price = _with_rate(cost.price)
    assert price.preemptions_per_hour is not None and price.spot_usd_per_chip_hour is not None
    run: SpotRun = spot_run(run_s, price.preemptions_per_hour, checkpoint_s, restart_s)
    if not math.isfinite(run.run_s):
        return dataclasses.replace(cost, price=_noted(price, "on spot this run is not expected to end"))
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
    return _noted(assumed, f"no rate of pre-emptions is published: one in {every_hours:g} hours is assumed")


def _noted(price: Price, sentence: str) -> Price:
    return dataclasses.replace(price, note=f"{price.note}; {sentence}" if price.note else sentence)


def _times(rate: float | None, amount: float | None) -> float | None:
    return None if rate is None or amount is None else rate * amount
