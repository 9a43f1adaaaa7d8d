"""Advice on a prediction, and the largest batch that fits if the program does not."""

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


def judged(job: Job, batch_size: int | None, prediction: Prediction, wish: Wish, tries: bool) -> Prediction:
    """Return a prediction with advice, and with the largest batch that fits if its own batch does not.

    Args:
        job: the planned job.
        batch_size: the batch that was asked for, or None for the job's own.
        prediction: the prediction of that batch.
        wish: settings of every prediction.
        tries: whether to compile changed programs to measure their gain.
    """
    if prediction.is_floor:
        return prediction  # A bound says neither where the time goes nor the gain of a change.
    # A program that the compiler did not finish would not finish with a change either, and each try costs its timeout.
    is_compiled = prediction.basis == "compiled"
    tries = tries and is_compiled
    facts, line = facts_of(job.program(batch_size), job.is_model, prediction.target.devices), None
    wish = dataclasses.replace(wish, is_trial=True)
    if not prediction.fits and is_compiled and job.has_batches and prediction.batch_size and prediction.memory:
        # State that is split is smaller on each device, by a factor that only the compiler knows.
        whole_bytes = 0 if facts.is_placed else facts.state_bytes
        parts = facts.batch_parts or prediction.target.devices
        prediction, line = _with_largest_batch(job, prediction, wish, parts, whole_bytes)
    if not prediction.fits:
        prediction = with_holding(job.program(batch_size), prediction, line, wish)

    compiled: list[Prediction] = []

    def predict(batch: int | None, precision: str | None, tpu: str | None) -> Prediction:
        changed = job if precision is None else job.with_precision(precision)
        compiled.append(ask(changed, batch, target_named(tpu) if tpu else prediction.target, wish))
        return compiled[-1]

    epoch_steps = wish.epoch_steps(prediction.batch_size)
    advice = advice_for(prediction, facts, predict if tries else None, job.has_batches, line, epoch_steps)
    notes = (*prediction.notes, *([_count(compiled)] if tries else []))
    return dataclasses.replace(prediction, advice=advice, notes=notes)


def _with_largest_batch(
    job: Job, prediction: Prediction, wish: Wish, parts: int, whole_bytes: int
) -> tuple[Prediction, MemoryLine | None]:
    """Return the prediction with the largest batch that fits, and the memory as a function of the batch.

    A compilation that fails, for example by a timeout, ends the search; the batches compiled before it count.

    Args:
        job: the planned job.
        prediction: the prediction of a batch that does not fit.
        wish: settings of every prediction.
        parts: number of parts into which the devices split the examples.
        whole_bytes: bytes of the state that are whole on each device. If these alone do not fit, no batch does.
    """
    assert prediction.batch_size is not None and prediction.memory is not None
    too_large = prediction.batch_size, prediction.memory
    if whole_bytes > prediction.memory.limit_bytes:
        largest = Largest(0, (too_large,))
    else:
        largest = ask_largest(job, prediction.target, wish, too_large)
    tried, batch_size, notes = [*largest.tried], largest.batch_size, [*prediction.notes]
    if largest.ended_by is not None:
        notes.append(_ended_early(largest.batch_size, largest.ended_by))
        batch_size = largest.batch_size or None
    else:
        try:
            tried += _half(job, prediction, wish, parts, tried)
        except Exception as error:  # A timeout; or a step that is written for one batch.
            notes.append(f"The memory of a smaller batch is not known: {_first_line(error)}")
    return dataclasses.replace(prediction, largest_batch=batch_size, notes=tuple(notes)), line_of(tried, parts)


def _half(
    job: Job, prediction: Prediction, wish: Wish, parts: int, tried: Sequence[tuple[int, Memory]]
) -> Iterator[tuple[int, Memory]]:
    """Yield half the smallest batch that fits, with its memory, if the batches tried so far give no good line."""
    fitting = [batch for batch, memory in tried if memory.fits]
    relaxed = sum(is_relaxed(memory) for _, memory in tried)
    if relaxed > 1 or (not fitting and len(tried) > 1):
        return
    batch = min(fitting or [prediction.batch_size or 0]) // 2 // parts * parts
    memory = ask(job, batch, prediction.target, wish).memory if batch else None
    if memory is not None:
        yield batch, memory


def _ended_early(batch_size: int, error: Exception) -> str:
    """Return the note on a search that a failed compilation ended.

    Args:
        batch_size: the largest batch that fitted, or 0.
        error: the error of the compilation.
    """
    if not batch_size:
        return f"The largest batch that fits was not found: {_first_line(error)}"
    why = _first_line(error)
    return f"The search for the largest batch ended early; a batch larger than {batch_size:,} may fit. {why}"


def _count(compiled: list[Prediction]) -> str:
    """Return the note on the number of programs that were compiled to try advice."""
    anew = sum(prediction.compile_s is not None for prediction in compiled)
    programs = "1 changed program was" if len(compiled) == 1 else f"{len(compiled)} changed programs were"
    return (
        f"To try advice, {programs} planned, {anew} of them compiled anew."
        if compiled
        else "No advice was to be tried."
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
