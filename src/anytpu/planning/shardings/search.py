"""`find_layouts`: the best layouts of a job over a slice, found without one.

Idea: the candidates of the trace are ranked by an estimate in seconds. The best of them are compiled by the TPU
compiler, and ranked by its prediction.

Rule: the user's code is not changed. Of each layout that was not compiled the reason is kept. Ctrl-C ends the search,
and keeps the layouts that were compiled before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

from anytpu._calls import explain_arguments
from anytpu.engine.slices import smallest_slice
from anytpu.errors import ProgramError, SettingError
from anytpu.planning.advice import slices_that_hold
from anytpu.planning.jobs.job import PlanJob
from anytpu.planning.jobs.settings import PlanSettings, check_positive_integer
from anytpu.planning.plans.planner import run_together
from anytpu.planning.plans.request import SpecOptions, requested
from anytpu.planning.records.shardings import Rank, Sharding, Shardings
from anytpu.planning.records.target import targets_named
from anytpu.planning.shardings.depth import SearchedJob
from anytpu.planning.shardings.slice_search import SliceSearch
from anytpu.planning.shardings.smaller_batch import largest_part
from anytpu.sharding import TracedStep, place, trace_step

STOPPED = "The search was stopped: layouts that were not compiled yet are only estimated."
"""The note of a search that Ctrl-C ended."""


@functools.partial(explain_arguments, also=SpecOptions.__annotations__)
def find_layouts(
    job: Any,
    tpu: str | Sequence[str] = "v5e-8",
    batch_size: int | None = None,
    *,
    compile: int = 8,
    rank: Rank = "time",
    mode: str | None = None,
    examples: int | None = None,
    epochs: int | None = None,
    prices: str | Path | None = None,
    **settings: Unpack[SpecOptions],
) -> Shardings:
    """Find how to lay a job over the devices of a TPU slice: rank its layouts by the TPU compiler's prediction.

    Args:
        job: a compiled Keras model, a JAX function `step(state, batch) -> (state, outputs)` or a Program, without
            shardings of its own.
        tpu: one slice or several: "v5e-8".
        batch_size: examples of one step over all devices; None for a job that brings its own batch.
        compile: maximum number of layouts to compile for each slice.
        rank: "time" orders by the time of a step, "cost" by its cost.
        mode: as `plan` takes it.
        examples: examples of an epoch, for its cost.
        epochs: epochs of the run, for its cost.
        prices: as `plan` takes it.
        **settings: as `plan` takes them: input_specs, precision, batch_axis, options, timeout_s, use_cache, progress
            and name.

    Raises:
        UnknownTPUError: no such TPU; the message names the nearest.
        ProgramError: the job cannot be planned, or has shardings of its own.
        SettingError: `compile` or `rank` is none of these.
        CompilerMissingError: the TPU compiler is not installed.
    """
    # 1. The arguments.
    check_positive_integer("compile", compile)
    if rank not in ("time", "cost"):
        raise SettingError(f"rank must be 'time' or 'cost', not {rank!r}")
    targets = targets_named(tpu)
    run = {"mode": mode, "examples": examples, "epochs": epochs, "prices": prices}
    jobs, own = requested(job, targets[0].devices, is_trial=True, **run, **settings)
    # 2. Every layout of every slice is estimated, and the best estimates are chosen.
    searches = [SliceSearch(_searched(jobs(target.devices), batch_size), target, own) for target in targets]
    for search in searches:
        search.choose(compile)
    # 3. Compilations, of all slices together.
    stopped = run_searches(searches)
    # 4. Notes on slices where nothing fits may take a few more compilations. Then all layouts are ranked together.
    notes = [note for search in searches for note in _notes(search, own, stopped)] + [STOPPED] * stopped
    ranked = sorted((sharding for search in searches for sharding in search.shardings), key=_order(rank))
    return Shardings(own.name or searches[0].job.traced.program.name, tuple(ranked), rank, tuple(notes))


def _searched(job: PlanJob, batch_size: int | None) -> SearchedJob:
    return SearchedJob(job, traced_job(job, batch_size), batch_size)


def _notes(search: SliceSearch, settings: PlanSettings, stopped: bool) -> Iterator[str]:
    """Yield notes on a system where nothing fits: the layout with the least memory, and the batch that fits."""
    if stopped:
        search.stop()
        return  # A layout that was not compiled yet may fit.
    least = search.least
    if least is None or search.fits:
        return
    held_by = _held_by(search, least, settings)
    yield f"Of the layouts on {search.target.name}, {least.title} needs the least memory: {least.reason} {held_by}"
    part = largest_part(search.job, least, search.target, settings)
    if part is not None:
        yield part.text


def _held_by(search: SliceSearch, least: Sharding, settings: PlanSettings) -> str:
    """Return a sentence on the smallest slice that holds a layout that does not fit."""
    if least.prediction is None:
        traced = search.job.traced
        name, held = smallest_slice(place(traced.program, least.layout, traced)), "its state and batch"
    else:
        holding = slices_that_hold(least.prediction, None, settings.prices)
        name, held = next((slice_.target.name for slice_ in holding), None), "it over as many devices"
    return f"The smallest slice that holds {held} is {name}." if name else f"No slice holds {held}."


def traced_job(job: PlanJob, batch_size: int | None) -> TracedStep:
    """Return the trace of a job without shardings.

    Raises:
        ProgramError: it has shardings of its own, or is a step for one replica.
    """
    program = job.program(batch_size)
    if program.placement is not None:
        raise ProgramError(
            f"{program.name!r} has shardings of its own, so there is nothing to find. Leave the shardings out of its "
            "specs and its step, or plan it as it is: anytpu.plan"
        )
    if program.replicas is not None:
        raise ProgramError(
            f"{program.name!r} is a step for one replica, with whole weights on each. Only whole-batch code can be "
            "laid over the devices: a Keras model, or a function step(state, batch) of the global batch"
        )
    return trace_step(program)


def run_searches(searches: Sequence[SliceSearch]) -> bool:
    """Run the rounds of searches, two compilations at a time; return whether Ctrl-C ended them early."""
    while searches:
        try:
            run_together([task for search in searches for task in search.tasks()])
        except KeyboardInterrupt:
            return True
        searches = [search for search in searches if search.next_round()]
    return False


def _order(rank: Rank) -> Callable[[Sharding], tuple[Any, ...]]:
    """Return the sort key: compiled layouts that fit, then estimated ones, then those that cannot run."""

    def key(sharding: Sharding) -> tuple[Any, ...]:
        prediction = sharding.prediction
        step_s = sharding.step_s
        cost = prediction.cost.usd_per_step if prediction and prediction.cost else None
        value = step_s if rank == "time" else cost
        # A system without a price comes after those with one.
        return (step_s is None, bool(prediction), value is None, value or step_s or sharding.estimate_s)

    return key
