"""A run on pre-emptible machines: the best interval between saves, and the expected duration.

Idea: a pre-emption costs the unsaved work and the time to start again; a save costs time too. One interval between
saves minimises the sum.

Rule: pre-emptions come at random at a steady rate (exponential times between them, mean `M`), as in J. T. Daly, "A
higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22(3),
2006, which refines J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
With `d` for a save, `R` for a restart and `T` for the work, in seconds:

    best interval   t = sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d   for d < 2M, else M
    time            M e^(R/M) (e^((t + d)/M) - 1) T / t
"""

from __future__ import annotations

import dataclasses
import math


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
    parts = math.ceil(work_s / max(best_interval_s(checkpoint_s, mean_s), 1e-3)) or 1
    part_s = work_s / parts
    try:
        rounds = (parts - 1) * math.expm1((part_s + checkpoint_s) / mean_s) + math.expm1(part_s / mean_s)
        run_s = mean_s * math.exp(restart_s / mean_s) * rounds
    except OverflowError:
        run_s = math.inf
    return SpotRun(run_s, part_s if parts > 1 else None)
