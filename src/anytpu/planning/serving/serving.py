"""`plan_serving`: the speed, the memory and the price of the answers of a language model on TPU slices.

Idea: an answer is one prefill step and a decode step for each token. The plan compiles both steps for each slice; all
numbers follow from their times and from the bytes of weights and cache.

Rule: all sequences of a batch start and end together, and the cache is full in each decode step. A server that adds
sequences one at a time, with a cache in pages, may do better. The bytes of weights and cache say how much at most. The
largest batch does not depend on the batch that is planned.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from anytpu._calls import explain_arguments
from anytpu.errors import CompilerMissingError, NoAnswerError, PlanError
from anytpu.planning.costs.waits import settings_of
from anytpu.planning.forecasts.forecast import predict
from anytpu.planning.jobs.job import PlanJob, batch_parts, jobs_of
from anytpu.planning.jobs.settings import PlanSettings, check_positive_integer
from anytpu.planning.memory.arguments import arguments_of
from anytpu.planning.memory.batches import FINE_ENOUGH
from anytpu.planning.memory.parts import parts_of
from anytpu.planning.plans.planner import run_together
from anytpu.planning.records import MemoryUse, Prediction, Serving, ServingPlan
from anytpu.planning.records.target import Target, limit_bytes, targets_named
from anytpu.planning.serving.decoding import decoding_steps
from anytpu.planning.shardings.automatic import by_estimate, search_of
from anytpu.planning.shardings.depth import restricted
from anytpu.planning.shardings.search import find_layouts
from anytpu.program.program import Program, state_names
from anytpu.sharding import ModelLayout

_FIXED = ("weights", "frozen", "state", "code")
"""Kinds of arrays whose size does not depend on the batch."""

_COMPILED = 3
"""Layouts of the decode step that are compiled for a slice of several devices."""

_MAX_ROUNDS = 6
"""Maximum number of batches of which schedules are made, to find the largest."""


@explain_arguments
def plan_serving(
    model: Any,
    batch_size: int,
    tpu: str | Sequence[str] = "v5e-1",
    *,
    prompt_tokens: int = 1024,
    new_tokens: int = 256,
    layout: Any = None,
    mesh: Mapping[str, int] | None = None,
    prices: str | Path | None = None,
    timeout_s: float = 600.0,
    use_cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> ServingPlan:
    """Predict how fast a language model answers on a TPU, whether it fits, and what a million tokens cost.

    Args:
        model: a CausalLM of KerasHub, such as that of `language_model`; also one without values.
        batch_size: number of sequences that are answered at once.
        tpu: one slice or several.
        prompt_tokens: tokens of a prompt.
        new_tokens: tokens of an answer.
        layout: how weights and cache lie over the devices. "data": whole weights, and the sequences are split; or a
            layout as `plan` takes it. None: for several devices the best that `find_layouts` finds for the decode step,
            without the TPU compiler the one with the shortest estimate.
        mesh: as `plan` takes it.
        prices: a file of prices that replaces the included table; see `anytpu docs prices`.
        timeout_s: time limit of one compilation, seconds.
        use_cache: whether to reuse compilations from the disk.
        progress: called with one line before each step of the work.

    Raises:
        UnknownTPUError: no such TPU; the message names the nearest.
        ProgramError: the model has no `call_with_cache`.
        SettingError: a number is not a positive integer, or no layout fits.

    Example:
        >>> model, _ = tpu.language_model("gemma3_1b")  # doctest: +SKIP
        >>> tpu.plan_serving(model, 8, "v5e-1")["v5e-1"].tokens_per_s  # doctest: +SKIP
        1876.0
    """
    for name, value in (("batch_size", batch_size), ("prompt_tokens", prompt_tokens), ("new_tokens", new_tokens)):
        check_positive_integer(name, value)
    targets = targets_named(tpu)
    # 1. The two steps.
    make = functools.cache(functools.partial(_steps, model, prompt_tokens, new_tokens))
    first, _ = make(batch_size)
    settings = settings_of(first, prices=prices, timeout_s=timeout_s, use_cache=use_cache, progress=progress)
    servings = []
    # 2. Each slice: a layout of the decode step, which prefill follows, and two compilations.
    for target in targets:
        own = layout
        if layout is None and target.devices > 1:
            own = _layout_for(make(batch_size)[1], target, settings)
        jobs = functools.partial(_jobs_on, make, target, own, mesh)
        # The steps of an answer are one call of the host: a loop of KerasHub's `generate`.
        calls = (settings, dataclasses.replace(settings, steps_per_execution=new_tokens))
        prefill, decode = run_together(map(_task, jobs(batch_size), [target, target], calls))
        # 3. The largest batch, from schedules.
        program = jobs(batch_size)[1].program(None)
        largest = _by_shapes(program, target, batch_size)
        if not (prefill.is_floor or decode.is_floor):
            largest = _by_schedules(jobs, target, settings, largest, batch_parts(program, target.devices))
        servings.append(Serving(prefill, decode, batch_size, prompt_tokens, new_tokens, largest))
    return ServingPlan(model.name, tuple(servings))


def _steps(model: Any, prompt_tokens: int, new_tokens: int, batch_size: int) -> tuple[Program, Program]:
    return decoding_steps(model, batch_size, prompt_tokens, new_tokens)


def _layout_for(decode: Program, target: Target, settings: PlanSettings) -> ModelLayout:
    try:
        found = find_layouts(
            decode,
            target.name,
            mode="infer",
            compile=_COMPILED,
            timeout_s=settings.timeout_s,
            use_cache=settings.use_cache,
            progress=settings.progress,
        )
    except CompilerMissingError as error:
        return by_estimate(search_of(decode, target), str(error)).layout
    return found.layout


def _jobs_on(
    make: Callable[[int], tuple[Program, Program]],
    target: Target,
    layout: Any,
    mesh: Mapping[str, int] | None,
    batch_size: int,
) -> list[PlanJob]:
    """Return the jobs of both steps at a batch; a layout has rules for the arrays of the decode step."""
    return [_job_on(program, target, layout, mesh) for program in make(batch_size)]


def _job_on(program: Program, target: Target, layout: Any, mesh: Mapping[str, int] | None) -> PlanJob:
    if layout == "data":
        layout = {"^cache/": ("data",)} if "cache" in program.state_kinds else "data"
    if isinstance(layout, ModelLayout) and layout.specs:
        names = state_names(program)
        # The cache of another batch has another shape, and the same partition.
        shapes = dict(zip(names, (tuple(leaf.shape) for leaf in jax.tree.leaves(program.state)), strict=True))
        layout = restricted(layout, names, shapes)
    return jobs_of(PlanJob(program), layout, mesh)(target.devices)


def _task(job: PlanJob, target: Target, settings: PlanSettings) -> Callable[[], Prediction]:
    return lambda: predict(job, None, target, settings)


def _by_shapes(program: Program, target: Target, batch_size: int) -> int:
    """Return the number of sequences whose weights and cache fit, by the shapes of the decode step alone."""
    need_bytes = sum(buffer.bytes for buffer in arguments_of(program, target))
    parts = parts_of(need_bytes, 0, program, target)
    return _largest(MemoryUse(need_bytes, limit_bytes(target), parts=parts), batch_size)


def _by_schedules(
    jobs: Callable[[int], list[PlanJob]], target: Target, settings: PlanSettings, by_shapes: int, parts: int
) -> int:
    """Return the number of sequences that fit in both steps, to a 32nd, from schedules.

    The first batch is that of the shapes, so the answer does not depend on the batch that was asked for.

    Args:
        jobs: returns the jobs of both steps at a batch.
        target: the slice.
        settings: settings of every prediction.
        by_shapes: number of sequences whose weights and cache fit.
        parts: number of parts into which the devices split the sequences.
    """
    settings = dataclasses.replace(settings, is_trial=True, stage="schedule")
    fits, fails, batch = 0, by_shapes + 1, by_shapes
    for _ in range(_MAX_ROUNDS):
        batch -= batch % parts
        if batch <= fits:
            break
        try:
            steps = run_together([_task(job, target, settings) for job in jobs(batch)])
        except NoAnswerError:  # No answer in time: the number that the last answer gave.
            return fits or batch
        except PlanError:  # The compiler crashes for large batches of some prefill steps (libtpu 0.0.42.1).
            fails = batch
            batch = (fits + fails) // 2
            continue
        computed = min(_largest(step.memory, batch) for step in steps)
        if all(step.fits for step in steps):
            fits = batch
        else:
            fails = batch
        if min(fails, computed) <= fits + fits // FINE_ENOUGH:
            break
        batch = computed if fits < computed < fails else (fits + fails) // 2
    return fits


def _largest(memory: MemoryUse | None, batch_size: int) -> int:
    # Linear in the batch: everything but the fixed kinds grows with it.
    assert memory is not None
    fixed = memory.bytes_of(*_FIXED)
    growing = memory.peak_bytes - fixed
    return max(int((memory.limit_bytes - fixed) / growing * batch_size), 0) if growing > 0 else 0
