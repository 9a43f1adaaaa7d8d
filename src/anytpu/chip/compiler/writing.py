"""`write`: generate the instructions of a job, by a function for each kind of job.

Idea: rows are processed in chunks of half the accumulators, so that one half is activated while the other is filled.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from anytpu.chip.compiler.emitter import Emitter, parts_of
from anytpu.chip.compiler.jobs import (
    Block,
    ExportJob,
    Feed,
    HostServiceJob,
    Job,
    PlaneOperation,
    PlaneOperationsJob,
    ProductJob,
)
from anytpu.chip.compiler.planes import Layout, StoragePlane
from anytpu.chip.isa.design import UNIT_BYTES
from anytpu.chip.isa.instructions import Activate, Convolve, InterruptHost, MatrixMultiply, WriteHostMemory
from anytpu.chip.isa.registers import Register

_MAX_PASSES = 255


@functools.singledispatch
def write(job: Job, emitter: Emitter) -> None:
    """Write the instructions of a job."""
    raise NotImplementedError(f"{type(job).__name__} is no job of the chip")


@write.register
def _(job: ProductJob, emitter: Emitter) -> None:
    emitter.set(job.settings)
    half = max(1, emitter.design.accumulator_rows // 2)
    chunks = list(_chunks(job.rows, half))
    one_tile = all(block.passes == 1 for block in job.blocks)
    if one_tile:  # Weight stationary: a tile is fetched once and stays in the array for all chunks of rows.
        order = [(block, chunk) for block in job.blocks for chunk in chunks]
    else:
        order = [(block, chunk) for chunk in chunks for block in job.blocks]
    for block, (first, rows) in order:
        _write_part(job, block, first, rows, emitter)


def _chunks(rows: int, maximum: int) -> Iterator[tuple[int, int]]:
    """Cut rows into the fewest chunks of at most `maximum`, of nearly equal size; yield (first, count) of each."""
    parts = -(-rows // maximum)
    for index in range(parts):
        first = index * rows // parts
        yield first, (index + 1) * rows // parts - first


def _write_part(job: ProductJob, block: Block, first: int, rows: int, emitter: Emitter) -> None:
    """Write the instructions for some rows of a block of outputs: all products, then the Activate."""
    # 1. Requests to the Weight Memory, as early as possible: their FIFOs prefetch.
    keep_parameters = emitter.fetch_parameters(block.parameters)
    keep = emitter.fetch_tiles(block.tiles, block.passes)
    sums = emitter.sums(rows)
    emitter.set({Register.FIRST_ROW: first})
    # 2. One product for each group of feeds; the first overwrites the sums, the others add to them.
    accumulate = False
    for feeds in _grouped(block.feeds):
        if feeds[0].window is None:
            _multiply(job, feeds, first, rows, sums, accumulate, keep, emitter)
        else:
            _convolve(job, feeds[0], rows, sums, accumulate, keep, emitter)
        accumulate, keep = True, False
    # 3. The sums become integers of the results.
    for result in block.results:
        target = result.target
        emitter.set({**result.settings, **_target_settings(target), Register.SOURCE_LANE: result.lane})
        address = _unit(target, emitter) + first * target.pitch
        keep = keep_parameters or result is not block.results[0]
        emitter.add(Activate("scale", sums, address, rows, keep=keep, table=result.table, wide_out=result.wide))


def _target_settings(target: StoragePlane) -> dict[Register, int | float]:
    units = 0 if target.is_whole else target.units
    return {Register.OUT_PITCH: target.pitch, Register.OUT_HIGH_OFFSET: target.high, Register.OUT_UNITS: units}


def _grouped(feeds: tuple[Feed, ...]) -> list[list[Feed]]:
    """Group feeds that one MatrixMultiply can take: planes at a constant stride."""
    groups: list[list[Feed]] = []
    for feed in feeds:
        last = groups[-1] if groups else []
        if last and _follows(last, feed):
            last.append(feed)
        else:
            groups.append([feed])
    return groups


def _follows(group: list[Feed], feed: Feed) -> bool:
    last = group[-1]
    if feed.window is not None or last.window is not None or len(group) == _MAX_PASSES:
        return False
    previous, other = last.plane, feed.plane
    if (previous.storage, previous.pitch, previous.high) != (
        other.storage,
        other.pitch,
        other.high,
    ) or other.offset < previous.offset:
        return False
    return len(group) == 1 or other.offset - previous.offset == previous.offset - group[-2].plane.offset


def _multiply(
    job: ProductJob, feeds: list[Feed], first: int, rows: int, sums: int, accumulate: bool, keep: bool,
    emitter: Emitter,
) -> None:  # fmt: skip
    plane = feeds[0].plane
    settings = {Register.PITCH: plane.pitch, Register.HIGH_OFFSET: plane.high}
    if len(feeds) > 1:
        settings[Register.PLANE_STRIDE] = feeds[1].plane.offset - plane.offset
    emitter.set(settings)
    address = _unit(plane, emitter) + first * plane.pitch
    emitter.add(MatrixMultiply(address, sums, rows, len(feeds), accumulate, keep, wide=job.wide))


def _convolve(
    job: ProductJob, feed: Feed, rows: int, sums: int, accumulate: bool, keep: bool, emitter: Emitter
) -> None:
    assert feed.window is not None
    plane = feed.plane
    emitter.set(
        {
            **feed.window.settings(),
            Register.PITCH: plane.pitch,
            Register.HIGH_OFFSET: plane.high,
            Register.LANES: feed.lanes,
            Register.TAPS: feed.taps,
        }
    )
    for done in range(0, feed.passes, _MAX_PASSES):
        emitter.set({Register.FIRST_TAP: done * feed.taps})
        repeat = min(_MAX_PASSES, feed.passes - done)
        emitter.add(Convolve(_unit(plane, emitter), sums, rows, repeat, accumulate or done > 0, keep, wide=job.wide))
        keep = False


@write.register
def _(job: PlaneOperationsJob, emitter: Emitter) -> None:
    for step in job.steps:
        _write_step(step, emitter)


def _write_step(step: PlaneOperation, emitter: Emitter) -> None:
    source, target = step.source, step.target
    emitter.set(step.settings)
    emitter.set(
        {
            Register.PITCH: source.pitch,
            Register.HIGH_OFFSET: source.high,
            **_target_settings(target),
        }
    )
    if step.second is not None:
        emitter.set(
            {
                Register.SECOND_PITCH: step.second.pitch,
                Register.SECOND_HIGH_OFFSET: step.second.high,
                Register.SECOND_ROWS: step.second_rows,
            }
        )
    # In chunks, so that a later instruction can start after the first. Each chunk starts at row 0 of a second operand
    # that is repeated.
    maximum = max(1, emitter.design.accumulator_rows // 2)
    if 0 < step.second_rows < step.rows:
        maximum = max(1, maximum // step.second_rows) * step.second_rows
    for first, rows in _whole_chunks(step.rows, maximum):
        _write_rows(step, first, rows, emitter)


def _whole_chunks(rows: int, maximum: int) -> Iterator[tuple[int, int]]:
    for first in range(0, rows, maximum):
        yield first, min(maximum, rows - first)


def _write_rows(step: PlaneOperation, first: int, rows: int, emitter: Emitter) -> None:
    source, second = _unit(step.source, emitter), 0
    if step.window is None:
        source += first * step.source.pitch
    else:
        emitter.set({Register.FIRST_ROW: first})
    if step.second is not None:
        second = _unit(step.second, emitter)
        if step.second_rows >= step.rows:
            second += first * step.second.pitch
    emitter.add(
        Activate(
            step.operation,  # pyright: ignore[reportArgumentType]
            source, _unit(step.target, emitter) + first * step.target.pitch, rows, second,
            False, step.table, step.counted, step.wide, step.wide_out,
        )
    )  # fmt: skip


@write.register
def _(job: ExportJob, emitter: Emitter) -> None:
    host = job.host_address
    for start, units in _buffer_ranges(job.layout, job.rows, emitter):
        for first, count in parts_of(units):
            emitter.add(WriteHostMemory(host + first * UNIT_BYTES, start + first, count))
        host += units * UNIT_BYTES


def _buffer_ranges(layout: Layout, rows: int, emitter: Emitter) -> list[tuple[int, int]]:
    """Return the ranges (start, units) of the Unified Buffer that planes occupy; adjacent ranges are merged."""
    ranges: list[tuple[int, int]] = []
    for plane in layout:
        units = rows * plane.pitch
        low = _unit(plane, emitter)
        for start in (low, low + plane.high) if plane.high else (low,):
            if ranges and sum(ranges[-1]) == start:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + units)
            else:
                ranges.append((start, units))
    return ranges


@write.register
def _(job: HostServiceJob, emitter: Emitter) -> None:
    emitter.flush()
    emitter.add(InterruptHost(job.number))


def _unit(plane: StoragePlane, emitter: Emitter) -> int:
    return emitter.addresses[plane.storage] + plane.offset
