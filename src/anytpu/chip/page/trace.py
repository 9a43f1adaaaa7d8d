"""A predicted run as a trace file for https://ui.perfetto.dev and chrome://tracing.

Idea: the chip is a process, each unit is a thread with its events as slices, and each fill level is a counter. The
matrix unit has two threads, since a tile is shifted in while the previous one multiplies.

Rule: times are microseconds, as the format requires; the cycles are in `args`. Slices of a thread never overlap. The
file is written event by event, so that a long program needs little memory.

Source: "Trace Event Format" of the Chromium project: complete events ("X"), counters ("C"), metadata ("M").
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from anytpu.chip.image.image import Image
from anytpu.chip.page.figures import CAUSES, PREDICTED, cycles_by_cause
from anytpu.chip.page.lanes import LANES, lane_of, part_name
from anytpu.chip.page.levels import buffer_levels, fifo_levels
from anytpu.chip.timing.record import Event, Timing
from anytpu.errors import SettingError
from anytpu.files.replacing import replaced
from anytpu.report.output import explained

_PROCESS = 1
_LAYERS = len(LANES) + 1
"""Thread that shows the layer of each cycle."""


def write_trace(timing: Timing, path: str | Path, image: Image | None = None) -> Path:
    """Write a trace and return its path.

    Args:
        timing: a timing with events.
        path: destination; compressed if the name ends in ".gz", which Perfetto opens directly.
        image: the program, for a counter of the Unified Buffer; None: no such counter.

    Raises:
        SettingError: the timing has no events, the program has no work for the chip, or the file cannot be written.
    """
    if not timing.cycles:
        raise SettingError(
            f"{timing.name!r} has no work for the chip, so there is nothing to trace: none of its instructions takes a "
            "cycle"
        )
    if not timing.events:
        raise SettingError(
            f"the timing of {timing.name!r} has no events, so there is nothing to trace: ask for them with "
            "program.time(events=True)"
        )
    target = Path(path)
    is_packed = target.suffix == ".gz"
    with explained("the trace", path), replaced(target) as unfinished, _open(unfinished, is_packed=is_packed) as file:
        _write(file, timing, image)
    return target


@contextlib.contextmanager
def _open(path: Path, *, is_packed: bool) -> Iterator[IO[str]]:
    if not is_packed:
        with path.open("w", encoding="utf-8") as file:
            yield file
        return
    # mtime=0, so that the same run gives the same bytes.
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8") as file,
    ):
        yield file


def _write(file: IO[str], timing: Timing, image: Image | None) -> None:
    other = {
        "program": timing.name,
        "note": PREDICTED,
        "batch": timing.batch,
        "clock_hz": timing.design.clock_hz,
        "cycles": timing.cycles,
        **{cause.name: cycles for cause, cycles in zip(CAUSES, cycles_by_cause(timing), strict=True)},
    }
    file.write(f'{{"displayTimeUnit":"ns","otherData":{_json(other)},"traceEvents":[')
    for index, event in enumerate(_events(timing, image)):
        file.write(("," if index else "") + "\n" + _json(event))
    file.write("\n]}\n")


def _events(timing: Timing, image: Image | None) -> Iterator[dict[str, Any]]:
    yield from _names(timing)
    us = 1e6 / timing.design.clock_hz
    for event in sorted(timing.events, key=lambda event: (event.start_cycles, lane_of(event))):
        yield _slice(timing, event, us)
    for start, stop, tag in timing.spans:
        yield {
            **{"ph": "X", "pid": _PROCESS, "tid": _LAYERS, "name": part_name(timing, tag), "cat": "layer"},
            **{"ts": start * us, "dur": (stop - start) * us, "args": {"start_cycles": start, "stop_cycles": stop}},
        }
    for cycles, tiles in fifo_levels(timing):
        yield _counter("weight FIFO", "tiles", cycles * us, tiles)
    for cycles, size_bytes in buffer_levels(timing, image) if image else ():
        yield _counter("Unified Buffer", "bytes", cycles * us, size_bytes)


def _names(timing: Timing) -> Iterator[dict[str, Any]]:
    yield _metadata("process_name", 0, name=f"{timing.name} on a virtual TPU v1 (predicted)")
    yield _metadata("thread_name", _LAYERS, name="layer")
    yield _metadata("thread_sort_index", _LAYERS, sort_index=0)
    for thread, lane in enumerate(LANES, 1):
        yield _metadata("thread_name", thread, name=lane.name)
        yield _metadata("thread_sort_index", thread, sort_index=thread)


def _metadata(key: str, thread: int, **arguments: Any) -> dict[str, Any]:
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "name": key, "args": arguments}


def _slice(timing: Timing, event: Event, us: float) -> dict[str, Any]:
    lane = lane_of(event)
    arguments: dict[str, Any] = {"start_cycles": event.start_cycles, "stop_cycles": event.stop_cycles}
    if event.tag >= 0:
        arguments["layer"] = part_name(timing, event.tag)
    if event.instruction >= 0:
        arguments["instruction"] = event.instruction
    return {
        **{"ph": "X", "pid": _PROCESS, "tid": lane + 1, "name": event.kind, "cat": LANES[lane].name},
        **{"ts": event.start_cycles * us, "dur": (event.stop_cycles - event.start_cycles) * us, "args": arguments},
    }


def _counter(name: str, unit: str, ts: float, value: float) -> dict[str, Any]:
    return {"ph": "C", "pid": _PROCESS, "tid": 0, "name": name, "ts": ts, "args": {unit: value}}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
