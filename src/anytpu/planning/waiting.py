"""`waiting`: the time of a step with its waits, first for the host's call, then for the batch."""

from __future__ import annotations

from anytpu.planning.host_wait import waiting_for_host
from anytpu.planning.input_wait import waiting_for_input
from anytpu.planning.records import StepTime
from anytpu.planning.wish import Wish


def waiting(time: StepTime, wish: Wish, batch_size: int | None) -> StepTime:
    """Return the time of a step that waits for the host or the input, if one is slower than the devices.

    Args:
        time: time of a step that never waits.
        wish: settings of the prediction, with the rates of the host and of the input.
        batch_size: examples of a step over all devices, or None.
    """
    hosted = waiting_for_host(time, wish.host_call_s, wish.steps_per_execution)
    return waiting_for_input(hosted, wish.input_examples_per_s, batch_size)
