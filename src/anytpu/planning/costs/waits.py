"""Waits of a step: for the host's call, and for the batch.

Idea: `fit` starts the next call, and the input pipeline reads the next batch, while the devices compute. So a step
takes the longest of the three times.

Rule: the devices' time is settled before. The rate of the input is the user's.
The host's time was measured on another machine than the TPU's, and may be off by a factor of two.

Source: benchmarks/results/host_call.json, CPU time of a call of `fit` with a progress bar, its arrays on the device:
565 µs on two cores of an AMD EPYC; 475 µs without the bar, 1.4 ms with batches from a generator.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from anytpu.planning.costs.prices import read_prices
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records import OpTime, StepTime
from anytpu.units import format_seconds

FIT_CALL_S = 565e-6
"""The time that one call of `fit` keeps the host busy."""

STEPS_BY_THE_CLOCK = 1024
"""Steps of one call that a plan assumes when `fit` chooses them. `fit` starts as many steps as take a quarter of a
second, at most this number. When it starts fewer, a step is so long that the host's share is negligible."""

HOST_WAIT = "waiting for the host"
"""The name of the wait for the host among the operations of a step."""

_HOST_OFF = 2.0
_INPUT_OFF = 0.1
"""Assumed error of the given rate of the input, as a logarithm, in the interval of a step."""


def add_waits(time: StepTime, settings: PlanSettings, batch_size: int | None) -> StepTime:
    """Return the time of a step that waits for the host or the input, if one is slower than the devices.

    Args:
        time: time of a step that never waits.
        settings: settings of the prediction, with the rates of the host and of the input.
        batch_size: examples of a step over all devices, or None.
    """
    hosted = add_host_wait(time, settings.host_call_s, settings.steps_per_execution)
    return add_input_wait(hosted, settings.input_examples_per_s, batch_size)


def add_host_wait(time: StepTime, call_s: float, steps_per_execution: int) -> StepTime:
    """Return the time of a step with the wait for the host's call.

    Args:
        time: time of a step whose host is fast enough.
        call_s: time that a call keeps the host busy, seconds; 0 if it is not known.
        steps_per_execution: steps that one call starts.

    Example:
        >>> add_host_wait(StepTime((), 1e-4, (9e-5, 1.1e-4)), 6e-4, 2).step_s
        0.0003
    """
    host_s = call_s / steps_per_execution
    # The host's time may be off by this factor. Even then the interval would not show it.
    if host_s * _HOST_OFF <= time.interval_s[0]:
        return time
    low_s, high_s = time.interval_s
    return dataclasses.replace(
        time,
        step_s=max(time.step_s, host_s),
        interval_s=(max(low_s, host_s / _HOST_OFF), max(high_s, host_s * _HOST_OFF)),
        ops=(*time.ops, OpTime(HOST_WAIT, "host", "host", max(0.0, host_s - time.step_s), priced_by="another host")),
        evidence=(
            *time.evidence,
            f"A call of fit keeps the host busy for {format_seconds(call_s)}, measured on two cores of an AMD EPYC; it "
            "starts while the devices run the call before. The TPU's own host may need half of it, or twice.",
        ),
    )


def add_input_wait(time: StepTime, input_examples_per_s: float | None, batch_size: int | None) -> StepTime:
    """Return the time of a step with the wait for its batch.

    Args:
        time: time of a step that never waits.
        input_examples_per_s: rate of the input pipeline, examples per second; None: never waited for.
        batch_size: examples of a step over all devices; None if it is not known: then there is no wait.

    Example:
        >>> add_input_wait(StepTime((), 0.1, (0.09, 0.11)), 1000.0, 500).step_s
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
        interval_s=(max(low_s, input_s * math.exp(-_INPUT_OFF)), max(high_s, input_s * math.exp(_INPUT_OFF))),
    )


def settings_of(
    job: Any,
    steps_per_execution: int | None = None,
    *,
    prices: str | Path | None = None,
    options: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
    **settings: Any,
) -> PlanSettings:
    """Return the settings of every prediction of a job, with the steps and the host's time of `fit` for a Keras model.

    Args:
        job: the job.
        steps_per_execution: steps of one call; None: as many as `fit` would choose, or 1.
        prices: a file of prices, or None.
        options: options of the compiler, or None.
        progress: called with one line before each step of the work, or None.
        **settings: other fields of `PlanSettings`.
    """
    fit_steps = steps_of_fit(job)
    return PlanSettings(
        steps_per_execution or fit_steps or 1,
        prices=read_prices(prices),
        options=options or {},
        progress=progress or PlanSettings.progress,
        host_call_s=FIT_CALL_S if fit_steps else 0.0,
        **settings,
    )


def steps_of_fit(job: Any) -> int | None:
    """Return how many steps `fit` would run with one call of the host; None for a job that is not a Keras model.

    A model compiled with a number has that number. Without one it reads 1, Keras's default, and anytpu's `fit` chooses
    by the clock. It takes up to `STEPS_BY_THE_CLOCK` short steps, never more than an epoch has.
    """
    steps = getattr(job, "steps_per_execution", None)
    if not isinstance(steps, int):
        return None
    return steps if steps > 1 else STEPS_BY_THE_CLOCK
