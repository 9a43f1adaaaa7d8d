"""`choose_layout`: the layout of `layout="auto"`, for the first step of a model that a strategy compiles.

Idea: it is the search of `tpu.find_layouts` with few compilations, by schedules alone. Without the TPU compiler, or
without an answer from it, the estimate of the search decides alone.

Rule: the same program, slice, compiler and runs of the user give the same layout. The reason is one line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from anytpu import _env, units
from anytpu.errors import AnyTPUError, SettingError
from anytpu.planning.jobs.job import PlanJob
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records.shardings import Sharding
from anytpu.planning.records.target import Target, limit_bytes, target_named
from anytpu.planning.shardings.depth import SearchedJob
from anytpu.planning.shardings.search import run_searches, traced_job
from anytpu.planning.shardings.slice_search import SliceSearch
from anytpu.program.batch_axes import with_rows
from anytpu.program.program import Program
from anytpu.sharding import ModelLayout

COMPILED = 3
"""Number of layouts that are compiled: data parallelism, the smallest state and the shortest estimate."""

_WORTH_SHARE = 0.05
"""A layout whose step is shorter by less than this share is no reason to leave a simpler one."""


@dataclasses.dataclass(frozen=True)
class ChosenLayout:
    """A layout and the reason for it.

    Attributes:
        layout: the layout.
        why: the reason, the end of a sentence.
    """

    layout: ModelLayout
    why: str


def choose_layout(program: Program, slice_name: str, say: Callable[[str], None]) -> ChosenLayout:
    """Return the layout of a program over a slice.

    Args:
        program: whole-batch code without a placement.
        slice_name: the slice, "v2-8".
        say: called with a line before a long wait.

    Raises:
        SettingError: no layout fits the memory of the slice.
        KeyboardInterrupt: Ctrl-C stopped a compilation.
    """
    target = target_named(slice_name)
    # 1. The same rows a device as in the run.
    program = _with_even_rows(program, target.devices)
    # 2. Without a compiler the estimate decides.
    search = search_of(program, target)
    if not _env.has_libtpu():
        return by_estimate(search, "the TPU compiler is not installed")
    # 3. A short search by schedules. Errors of the compiler leave the choice to the estimate.
    say(f'layout="auto" compiles up to {COMPILED} layouts of {program.name!r} for {slice_name}')
    search.choose(COMPILED)
    try:
        is_stopped = run_searches([search])
    except AnyTPUError as error:
        return by_estimate(search_of(program, target), f"the TPU compiler has no answer, {error}")
    if is_stopped:
        raise KeyboardInterrupt
    chosen = _by_prediction(search.shardings)
    return chosen or by_estimate(search_of(program, target), "of no layout that fits there is a prediction")


def search_of(program: Program, target: Target) -> SliceSearch:
    """Return the search for a layout of a program, in which each one is estimated."""
    job = PlanJob(program)
    settings = PlanSettings(is_trial=True, stage="schedule")
    return SliceSearch(SearchedJob(job, traced_job(job, None), None), target, settings)


def _with_even_rows(program: Program, devices: int) -> Program:
    """Return a program for a batch that the devices divide: a run pads the others, and a plan takes no remainder."""
    rows = program.rows
    if rows is None or rows % devices == 0:
        return program
    batch = with_rows(program.name, program.batch, program.layout, -(-rows // devices) * devices)
    return dataclasses.replace(program, batch=batch)


def _by_prediction(shardings: Sequence[Sharding]) -> ChosenLayout | None:
    """Return the simplest layout whose predicted step is about the shortest; None without a prediction."""
    # A layout that does not fit is there twice, with and without rematerialisation, and one of them has no time.
    timed = [(sharding.layout, sharding.step_s) for sharding in shardings if sharding.step_s]
    if not timed:
        return None
    times = {layout.name: step_s for layout, step_s in timed}
    shortest_s, best = min(times.values()), _simplest(timed)
    name, count = best.name, f"{len(times)} compiled layouts of {len(shardings)}"
    if name != "data" and "data" in times:
        count += f"; data takes {units.format_seconds(times['data'])}"
    rank = "the least" if times[name] == shortest_s else f"within {_WORTH_SHARE:.0%} of the least"
    return ChosenLayout(best, f"{units.format_seconds(times[name])} a step is predicted, {rank} of {count}")


def _simplest(timed: Sequence[tuple[ModelLayout, float]]) -> ModelLayout:
    """Return the simplest of the layouts that take about the shortest time."""
    shortest_s = min(step_s for _, step_s in timed)
    about = [layout for layout, step_s in timed if step_s * (1 - _WORTH_SHARE) <= shortest_s]
    return min(about, key=lambda layout: (layout.name != "data", len(layout.patterns)))


def by_estimate(search: SliceSearch, cause: str) -> ChosenLayout:
    """Return the simplest layout whose estimate is about the shortest of those that fit the memory.

    Args:
        search: the estimated layouts.
        cause: why the estimate decides, the end of a sentence.

    Raises:
        SettingError: no layout fits the memory of the slice.
    """
    limit, name = limit_bytes(search.target), search.job.traced.program.name
    fitting = [(each.layout, each.estimate_s) for each in search.shardings if each.state_bytes <= limit]
    if not fitting:
        least = min(search.shardings, key=lambda each: each.state_bytes)
        raise SettingError(
            f'layout="auto" finds no layout of {name!r} for {search.target.name}: the smallest, {least.layout.name}, '
            f"takes {units.format_bytes(least.state_bytes)} of a device for the state and the batch, and it has "
            f"{units.format_bytes(limit)}. Use a larger slice"
        )
    best = _simplest(fitting)
    layouts = "layout that fits" if len(fitting) == 1 else f"{len(fitting)} layouts that fit"
    return ChosenLayout(best, f"about the shortest estimate of {layouts}, by FLOPs and bytes alone; {cause}")
