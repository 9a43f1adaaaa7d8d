"""The keyword arguments that `plan`, `scaling`, `max_batch_size`, `ways_to_fit` and `shard` share, and their reading.

Idea: each of these functions plans a job with settings. `plan` documents every argument; here each has its type once.
The defaults are those of `PlanSettings` and `PlanJob`.

Rule: a function takes only the arguments that it uses, so each has the record of its arguments below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from anytpu.planning.costs.waits import settings_of
from anytpu.planning.jobs.job import PlanJob, jobs_of
from anytpu.planning.jobs.settings import PlanSettings


class CompileOptions(TypedDict, total=False):
    """Arguments on each compilation, with their meaning in `plan`."""

    options: Mapping[str, str] | None
    timeout_s: float
    use_cache: bool
    progress: Callable[[str], None] | None
    name: str | None


class SpecOptions(CompileOptions, total=False):
    """`CompileOptions` and the step, with their meaning in `plan`."""

    input_specs: Any
    precision: str | None
    batch_axis: Any


class JobOptions(SpecOptions, total=False):
    """`SpecOptions` and the layout, with their meaning in `plan`."""

    layout: Any
    mesh: Mapping[str, int] | None


class RunOptions(JobOptions, total=False):
    """`JobOptions` and the run, with their meaning in `plan`."""

    mode: str | None
    steps_per_execution: int | None
    input_examples_per_s: float | None
    examples: int | None
    epochs: int | None
    prices: str | Path | None


_OF_JOB = ("input_specs", "mode", "precision", "batch_axis")


def requested(
    job: Any, devices: int, *, waits: bool = True, **given: Any
) -> tuple[Callable[[int], PlanJob], PlanSettings]:
    """Return a function from the number of devices to the job, and the settings of every prediction.

    Args:
        job: as `plan` takes it.
        devices: number of devices of the first system.
        waits: whether a step of a Keras model may wait for the host's call of `fit`.
        **given: the arguments of a `RunOptions`, and fields of `PlanSettings`.
    """
    made = PlanJob(job, **{name: given.pop(name, None) for name in _OF_JOB})
    jobs = jobs_of(made, given.pop("layout", None), given.pop("mesh", None))
    return jobs, settings_of(jobs(devices).source if waits else None, **given)
