"""Predict one batch of a job on one system, and find the largest batch that fits there.

Rule: `Wish.progress` gets a line before each compilation, because one may take a minute.
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
"""Rows a device at which the search for the largest batch begins, if no batch is known to be too large."""


def ask(job: Job, batch_size: int | None, target: Target, wish: Wish) -> Prediction:
    """Predict one batch of a job on one system, after a progress line."""
    program = job.program(batch_size)
    rows = batch_rows(program)
    wish = wish.of_fit(rows)
    batch = f", {rows:,} examples a step" if rows else ""
    wish.progress(f"{wish.name or program.name} on {target.name} ({target.compiler_name}){batch}")
    return forecast(program, target, wish, functools.partial(by_extrapolation, job, batch_size, target, wish))


def ask_largest(job: Job, target: Target, wish: Wish, too_large: tuple[int, Memory] | None = None) -> Largest:
    """Find the largest batch of a job that fits on a system.

    Args:
        job: the job.
        target: the system.
        wish: settings of every prediction.
        too_large: a batch that does not fit, with its memory, or None.
    """

    trial = dataclasses.replace(wish, is_trial=True)

    def memory_at(batch: int) -> Memory:
        memory = ask(job, batch, target, trial).memory
        assert memory is not None
        wish.progress(f"{batch:,} examples on {target.name}: {_verdict(memory)}")
        return memory

    start = ROWS_TO_BEGIN_WITH * target.devices
    if too_large:
        start = too_large[0]
        wish.progress(f"{start:,} examples do not fit on {target.name}: looking for the largest batch that does")
    return largest_batch(batch_parts(job.program(start), target.devices), memory_at, start, too_large)


def _verdict(memory: Memory) -> str:
    if memory.fits:
        return f"fits, with {memory.peak_bytes / memory.limit_bytes:.0%} of the memory"
    return f"does not fit, {format_bytes(memory.missing_bytes)} are missing"
