"""`plan_serving`: the speed, the memory and the price of the answers of a language model on TPU slices.

Idea: an answer is one prefill step and a decode step for each token. The plan compiles both steps for each slice; all
numbers follow from their times and from the bytes of weights and cache.

Rule: all sequences of a batch start and end together, and the cache is full in each decode step. A server that adds
sequences one at a time, with a cache in pages, may do better. The bytes of weights and cache say how much at most. The
largest batch is one of the layout of the planned batch, to a 32nd; None where the compiler did not tell.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from anytpu._calls import explain_arguments
from anytpu.errors import CompilerMissingError, NoAnswerError, PlanError, SettingError
from anytpu.planning.costs.waits import settings_of
from anytpu.planning.forecasts.forecast import predict
from anytpu.planning.jobs.job import PlanJob, batch_parts, jobs_of
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.memory.arguments import arguments_of
from anytpu.planning.memory.batches import FINE_ENOUGH, MAX_TRIES, next_batch
from anytpu.planning.memory.parts import parts_of
from anytpu.planning.plans.planner import run_together
from anytpu.planning.records import MemoryUse, Prediction, Serving, ServingPlan
from anytpu.planning.records.target import Target, limit_bytes, targets_named
from anytpu.planning.serving.decoding import decoding_steps
from anytpu.planning.shardings.automatic import by_estimate, search_of
from anytpu.planning.shardings.depth import restricted
from anytpu.planning.shardings.search import find_layouts
from anytpu.program.program import Program, state_names
from anytpu.sharding import ModelLayout, resolve

_FIXED = ("weights", "frozen", "state", "code")
"""Kinds of arrays whose size does not depend on the batch."""

_COMPILED = 3
"""Layouts of the decode step that are compiled for a slice of several devices."""


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
        if type(value) is not int or not 1 <= value < 2**31:
            raise SettingError(f"{name} must be a positive integer below 2**31, not {value!r}")
    targets = targets_named(tpu)
    # 1. The two steps.
    make = functools.cache(lambda batch: decoding_steps(model, batch, prompt_tokens, new_tokens))
    settings = settings_of(None, prices=prices, timeout_s=timeout_s, use_cache=use_cache, progress=progress)
    settings.progress("tracing the steps of the prompts and of a token")
    servings = []
    # 2. Each slice: a layout of the decode step, which prefill follows, and two compilations.
    for target in targets:
        own = layout
        if layout is None and target.devices > 1:
            own = _layout_for(make(batch_size)[1], target, settings)

        def jobs(batch: int, target: Target = target, own: Any = own) -> list[PlanJob]:
            return [_job_on(program, target, own, mesh) for program in make(batch)]

        # The steps of an answer are one call of the host: a loop of KerasHub's `generate`.
        calls = (settings, dataclasses.replace(settings, steps_per_execution=new_tokens))
        prefill, decode = run_together(map(_task, jobs(batch_size), [target, target], calls))
        if decode.step_s is not None:
            settings.progress(f"{target.name}: {1e3 * decode.step_s:.3g} ms a token; the largest batch follows")
        # 3. The largest batch, from schedules.
        program = jobs(batch_size)[1].program(None)
        largest, parts = _by_shapes(program, target, batch_size), batch_parts(program, target.devices)
        if prefill.is_floor or decode.is_floor:
            largest -= largest % parts
        else:
            planned = batch_size, (prefill, decode)
            largest = _by_schedules(jobs, target, settings, largest, parts, planned)
        numbers = batch_size, prompt_tokens, new_tokens, largest
        servings.append(Serving(prefill, decode, *numbers, target.devices > 1 and _keeps_cache_whole(program)))
    return ServingPlan(model.name, tuple(servings))


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


def _job_on(program: Program, target: Target, layout: Any, mesh: Mapping[str, int] | None) -> PlanJob:
    """Return the job of a step; a layout has rules for the arrays of the decode step."""
    if layout == "data":
        layout = {"^cache(/|$)": ("data",)} if "cache" in program.state_kinds else "data"
    # A file or a result of a search has rules for the arrays of one step.
    if layout is not None and layout != "auto":
        layout, mesh = resolve(layout, mesh, target.devices), None
        names = state_names(program)
        # The step of the prompts has no cache in its state; the decode step has every array that a pattern may match.
        if "cache" not in program.state_kinds:
            layout = dataclasses.replace(layout, patterns=())
    if isinstance(layout, ModelLayout) and layout.specs:
        # The cache of another batch has another shape, and the same partition.
        shapes = dict(zip(names, (tuple(leaf.shape) for leaf in jax.tree.leaves(program.state)), strict=True))
        layout = restricted(layout, names, shapes)
    return jobs_of(PlanJob(program), layout, mesh)(target.devices)


def _task(job: PlanJob, target: Target, settings: PlanSettings) -> Callable[[], Prediction]:
    return lambda: predict(job, None, target, settings)


def _keeps_cache_whole(decode: Program) -> bool:
    """Return whether each device holds the whole cache."""
    specs = decode.placement.specs if decode.placement else ()
    return not any(any(spec) for spec, kind in zip(specs, decode.state_kinds, strict=False) if kind == "cache")


def _by_shapes(program: Program, target: Target, batch_size: int) -> int:
    """Return the number of sequences whose weights and cache fit, by the shapes of the decode step alone."""
    need_bytes = sum(buffer.bytes for buffer in arguments_of(program, target))
    # Linear in the batch: everything but the fixed kinds grows with it.
    fixed = MemoryUse(need_bytes, 0, parts=parts_of(need_bytes, 0, program, target)).bytes_of(*_FIXED)
    growing = need_bytes - fixed
    return max(int((limit_bytes(target) - fixed) / growing * batch_size), 0) if growing > 0 else 0


def _by_schedules(
    jobs: Callable[[int], list[PlanJob]],
    target: Target,
    settings: PlanSettings,
    by_shapes: int,
    parts: int,
    planned: tuple[int, Sequence[Prediction]],
) -> int | None:
    """Return the number of sequences that fit in both steps, to a 32nd, from schedules; None if it is not known.

    It is not known if the compiler had no answer in time, or if no batch was found that fits.

    Args:
        jobs: returns the jobs of both steps at a batch.
        target: the slice.
        settings: settings of every prediction.
        by_shapes: number of sequences whose weights and cache fit.
        parts: number of parts into which the devices split the sequences.
        planned: the batch that was planned, and the predictions of both its steps.
    """
    settings = dataclasses.replace(settings, is_trial=True, stage="schedule")
    batch, steps = planned
    most = by_shapes // parts
    # The step that fills more memory is searched; then one schedule of the other one mostly shows that it fits too.
    by_need = sorted(enumerate(steps), key=lambda pair: -pair[1].memory.peak_bytes if pair[1].memory else 0)
    for index, step in by_need:
        # The bracket, in sequences of each part, as in the search of the largest batch of a step.
        tried: dict[float, MemoryUse] = {batch / parts: step.memory} if step.memory else {}
        fits, fails = batch // parts if step.fits else 0, most + 1
        at = most
        if not step.fits and -(-batch // parts) < fails:
            fails = -(-batch // parts)
            at = fails // 2
        for _ in range(MAX_TRIES):
            if fails - fits <= max(1, fits // FINE_ENOUGH):
                break
            try:
                step = run_together([_task(jobs(at * parts)[index], target, settings)])[0]
            except NoAnswerError:
                return None
            except PlanError:  # The compiler crashes for large batches of some prefill steps (libtpu 0.0.42.1).
                fails = at
                at = (fits + fails) // 2  # It has no memory from which a batch would follow.
            else:
                assert step.memory is not None
                tried[at] = step.memory
                fits, fails = (at, fails) if step.fits else (fits, at)
                at = next_batch(fits, fails, tried)
        most = min(fits, most)
        if not most and fails > 1:
            return None
    return max(most * parts, batch if all(step.fits for step in steps) else 0)
