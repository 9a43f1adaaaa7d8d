"""`waiting_for_input`: a step that waits because its batch comes too slowly.

Idea: the input pipeline reads the next batch while the devices compute, so a step takes the longer of both times.

Rule: the rate is the user's. The devices' time, with its correction by measured runs, is settled before.
"""

from __future__ import annotations

import dataclasses
import math

from anytpu.planning.records import OpTime, StepTime

_OFF = 0.1
"""How far off the rate that was given is taken to be, as a logarithm, in the interval of a step."""


def waiting_for_input(time: StepTime, input_examples_per_s: float | None, batch_size: int | None) -> StepTime:
    """Return the time of a step with the wait for its batch.

    Args:
        time: time of a step that never waits.
        input_examples_per_s: rate of the input pipeline, examples per second; None: never waited for.
        batch_size: examples of a step over all devices; None if it is not known: then there is no wait.

    Example:
        >>> waiting_for_input(StepTime((), 0.1, (0.09, 0.11)), 1000.0, 500).step_s
        0.5
    """
    if not input_examples_per_s or not batch_size:
        return time
    input_s = batch_size / input_examples_per_s
    low_s, high_s = time.interval_s
    wait = OpTime("input", "input", "input", max(0.0, input_s - time.step_s), priced_by="the rate that was given")
    return dataclasses.replace(
        time,
        ops=(*time.ops, wait),
        step_s=max(time.step_s, input_s),
        interval_s=(max(low_s, input_s * math.exp(-_OFF)), max(high_s, input_s * math.exp(_OFF))),
    )
