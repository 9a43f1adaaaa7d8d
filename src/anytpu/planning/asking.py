"""One batch of a job on one system, asked of whoever predicts; and the largest batch that fits there.

Rule: each question is announced (`Wish.progress`) before it is asked, for it may take a minute.
"""

from __future__ import annotations

import dataclasses
import functools

from anytpu.planning.extrapolated import by_extrapolation
from anytpu.planning.forecast import forecast
from anytpu.planning.job import Job, batch_parts, batch_rows
from anytpu.planning.largest import Largest, largest_batch
from anytpu.planning.records import Memory, Prediction
from anytpu.planning.target import Target
from anytpu.planning.wish import Wish
from anytpu.units import format_bytes

ROWS_TO_BEGIN_WITH = 128
"""Rows a device with which the search for the largest batch begins where nothing else is known."""


def ask(job: Job, batch_size: int | None, target: Target, wish: Wish) -> Prediction:
    """Predict one batch of a job on one system, saying so first."""
    program = job.program(batch_size)
    rows = batch_rows(program)
    wish = wish.of_fit(rows)
    batch = f", {rows:,} examples a step" if rows else ""
    wish.progress(f"{program.name} on {target.name} ({target.compiler_name}){batch}")
    return forecast(program, target, wish, functools.partial(by_extrapolation, job, batch_size, target, wish))


def ask_largest(job: Job, target: Target, wish: Wish, most: int | None = None) -> Largest:
    """Find the largest batch of a job that fits on a system.

    Args:
        job: the job.
        target: the system.
        wish: what holds for every prediction.
        most: a batch that is known not to fit, or None.
    """

    trial = dataclasses.replace(wish, is_trial=True)

    def memory_at(batch: int) -> Memory:
        memory = ask(job, batch, target, trial).memory
        assert memory is not None
        wish.progress(f"{batch:,} examples on {target.name}: {_verdict(memory)}")
        return memory

    if most:
        wish.progress(f"{most:,} examples do not fit on {target.name}: looking for the largest batch that does")
    start = most or ROWS_TO_BEGIN_WITH * target.devices
    return largest_batch(batch_parts(job.program(start), target.devices), memory_at, start, most)


def _verdict(memory: Memory) -> str:
    if memory.fits:
        return f"fits, with {memory.peak_bytes / memory.limit_bytes:.0%} of the memory"
    return f"does not fit, {format_bytes(memory.missing_bytes)} are missing"
