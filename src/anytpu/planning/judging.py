"""What is to be said of a prediction: what to change, and of what does not fit, what would."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from anytpu.planning.advice import MemoryLine, advice_for, facts_of, is_relaxed, line_of
from anytpu.planning.asking import ask, ask_largest
from anytpu.planning.holding import with_holding
from anytpu.planning.job import Job
from anytpu.planning.largest import Largest
from anytpu.planning.records import Memory, Prediction
from anytpu.planning.target import target_named
from anytpu.planning.wish import Wish


def judged(job: Job, batch_size: int | None, found: Prediction, wish: Wish, tries: bool) -> Prediction:
    """Return a prediction with advice; of what does not fit, also with the largest batch that does.

    Args:
        job: what was planned.
        batch_size: the batch that was asked for, or None for the job's own.
        found: what was predicted.
        wish: what holds for every prediction.
        tries: compile changed programs to see what they gain.
    """
    if found.is_floor:
        return found  # A bound says neither where the time goes nor what a change would gain.
    # What the compiler did not finish once it would not finish with a change: each try would take its time limit.
    is_compiled = found.basis == "compiled"
    tries = tries and is_compiled
    facts, line = facts_of(job.program(batch_size), job.is_model, found.target.devices), None
    wish = dataclasses.replace(wish, is_trial=True)
    if not found.fits and is_compiled and job.has_batches and found.batch_size and found.memory:
        # State that is split is smaller on each device, by a factor that only the compiler knows.
        whole_bytes = 0 if facts.is_placed else facts.state_bytes
        found, line = _smaller(job, found, wish, facts.batch_parts or found.target.devices, whole_bytes)
    if not found.fits:
        found = with_holding(job.program(batch_size), found, line, wish)

    compiled: list[Prediction] = []

    def predict(batch: int | None, precision: str | None, tpu: str | None) -> Prediction:
        changed = job if precision is None else job.with_precision(precision)
        compiled.append(ask(changed, batch, target_named(tpu) if tpu else found.target, wish))
        return compiled[-1]

    most_steps = wish.epoch_steps(found.batch_size)
    advice = advice_for(found, facts, predict if tries else None, job.has_batches, line, most_steps)
    notes = (*found.notes, *([_count(compiled)] if tries else []))
    return dataclasses.replace(found, advice=advice, notes=notes)


def _smaller(
    job: Job, found: Prediction, wish: Wish, parts: int, whole_bytes: int
) -> tuple[Prediction, MemoryLine | None]:
    """Return the prediction with the largest batch that fits, and the memory as a function of the batch.

    Args:
        job: what was planned.
        found: what was predicted.
        wish: what holds for every prediction.
        parts: the number of parts in which examples lie over the devices.
        whole_bytes: the bytes of the state that are whole on each device: where these alone do not fit, no batch does.
    """
    assert found.batch_size is not None and found.memory is not None
    try:
        fits_none = whole_bytes > found.memory.limit_bytes
        largest = Largest(0, ()) if fits_none else ask_largest(job, found.target, wish, most=found.batch_size)
        tried = [*largest.tried, (found.batch_size, found.memory)]
        tried += _half(job, found, wish, parts, tried)
    except Exception as error:  # A step that is written for one batch fails in its own way for another.
        why = f"The largest batch that fits was not found: {_first_line(error)}"
        return dataclasses.replace(found, notes=(*found.notes, why)), None
    return dataclasses.replace(found, largest_batch=largest.batch_size), line_of(tried, parts)


def _half(
    job: Job, found: Prediction, wish: Wish, parts: int, tried: Sequence[tuple[int, Memory]]
) -> Iterator[tuple[int, Memory]]:
    """Yield half the smallest batch that fits, with its memory, where the batches that were tried give no good line."""
    fitting = [batch for batch, memory in tried if memory.fits]
    relaxed = sum(is_relaxed(memory) for _, memory in tried)
    if relaxed > 1 or (not fitting and len(tried) > 1):
        return
    batch = min(fitting or [found.batch_size or 0]) // 2 // parts * parts
    memory = ask(job, batch, found.target, wish).memory if batch else None
    if memory is not None:
        yield batch, memory


def _count(compiled: list[Prediction]) -> str:
    """Say how many programs were compiled to try advice."""
    anew = sum(one.compile_s is not None for one in compiled)
    programs = "1 changed program was" if len(compiled) == 1 else f"{len(compiled)} changed programs were"
    return (
        f"To try advice, {programs} planned, {anew} of them compiled anew."
        if compiled
        else "No advice was to be tried."
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
