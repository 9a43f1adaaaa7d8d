"""`waiting_for_host`: a step that waits because the host needs longer to start a call than the devices to run it.

Idea: `fit` starts the next call while the devices run the one before, so a step takes the longer of both times.

Rule: the host's time was measured on another machine than the TPU's, and may be off by a factor of two.

Source: benchmarks/results/host_call.json, CPU time of a call of `fit` with a progress bar, its arrays on the device:
565 µs on two cores of an AMD EPYC; 475 µs without the bar, 1.4 ms with batches from a generator.
"""

from __future__ import annotations

import dataclasses

from anytpu.planning.records import OpTime, StepTime
from anytpu.units import format_seconds

FIT_CALL_S = 565e-6
"""The time that one call of `fit` keeps the host busy."""

OP = "waiting for the host"
"""The name of the wait among the operations of a step."""

_OFF = 2.0


def waiting_for_host(time: StepTime, call_s: float, steps_per_execution: int) -> StepTime:
    """Return the time of a step with the wait for the host's call.

    Args:
        time: time of a step whose host is fast enough.
        call_s: time that a call keeps the host busy, seconds; 0 if it is not known.
        steps_per_execution: steps that one call starts.

    Example:
        >>> waiting_for_host(StepTime((), 1e-4, (9e-5, 1.1e-4)), 6e-4, 2).step_s
        0.0003
    """
    host_s = call_s / steps_per_execution
    if host_s * _OFF <= time.interval_s[0]:
        return time
    low_s, high_s = time.interval_s
    return dataclasses.replace(
        time,
        step_s=max(time.step_s, host_s),
        interval_s=(max(low_s, host_s / _OFF), max(high_s, host_s * _OFF)),
        ops=(*time.ops, OpTime(OP, "host", "host", max(0.0, host_s - time.step_s), priced_by="another host")),
        evidence=(
            *time.evidence,
            f"A call of fit keeps the host busy for {format_seconds(call_s)}, measured on two cores of an AMD EPYC; it "
            "starts while the devices run the call before. The TPU's own host may need half of it, or twice.",
        ),
    )
