"""`counted_time`: the time of a sort, top-k, gather, scatter or pooling, for which the compiler gives no cycles.

Idea: the vector unit handles 8 x 128 elements at a time. A sort passes over its elements once for every stage of a
bitonic network. A top-k keeps sorted runs of k elements and merges them. Pooling passes over its result once for every
position of the window. A gather or a scatter takes one row after another. In the main memory each row is its own
transfer, of which several are in flight; in on-chip memory it is a few instructions.

Rule: this counts instructions and ignores their schedule, so it makes the interval wider.

Source: T. Norrie et al., "The Design Process for Google's Training Chips: TPUv2 and TPUv3", IEEE Micro 2021 (vector
unit). Cycles read from a clock on TPU v4 itself: https://github.com/ayaka14732/tpu-v4-latency-numbers and
https://github.com/ayaka14732/pallas-tpu-tutorial, chapter01.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from anytpu.planning.hlo import HloInstruction, Shape
from anytpu.planning.hlo.flops import window_of
from anytpu.planning.records.target import Target

VECTOR = 8 * 128
"""Number of elements that one vector instruction handles."""

_VECTOR_ALUS = {"v2": 2, "v3": 2, "v4": 2}  # Norrie et al. for v2 and v3; the instruction format of v4 has two as well
_LATER_ALUS = 4  # https://jax-ml.github.io/scaling-book/tpus: four a lane since v5
LATENCY_S = 0.43e-6
"""Latency between the main memory and on-chip memory, seconds, either way: 484 and 418 cycles at 1.05 GHz, read on v4;
assumed for all chips."""

_IN_FLIGHT = 16  # a guess: 8 transfers at a time wait no longer than one, read on v4; nobody published more
ROW_S = LATENCY_S / _IN_FLIGHT
"""Time to read a row of the main memory, seconds."""
UPDATE_S = 0.122e-6
"""Time to read, change and write a row of the main memory, seconds. On v6e 4.1 million elements took about 0.5 s, most
of a sampler's 507 ms: https://github.com/vllm-project/vllm/pull/15242 and 15891."""
_UPDATE_CYCLES = 30  # the same in the memory on the chip: a guess, two rows' cycles and a wait for what was just stored
_ROW_CYCLES = 9  # a row in the memory on the chip: XLA's gather of 1,024 single numbers took 9,213, read on v4
_WINDOW_CYCLES = 5.4  # a vector and window position: the compiler's own cycles for max pooling of 3x3 on v5e
_LANE_CYCLES = 4  # a guess: a rotation of lanes every 8 cycles in one unit (read on v4), and two or more such units

_DIMENSION = re.compile(r"\bdimensions=\{(\d+)\}")
_SLICE = re.compile(r"slice_sizes=\{([\d,]*)\}")
_UPDATE = re.compile(r"update_window_dims=\{([\d,]*)\}")
_SCRATCH = re.compile(r'"used_scoped_memory_configs":\[\{"memory_space":"1","offset":"\d+","size":"(\d+)"')
_COUNTED = ("sort", "gather", "scatter", "select-and-scatter", "reduce-window")
_NO_WORK = ("parameter", "constant", "bitcast", "bitcast-convert", "tuple", "get-tuple-element")


class CountedTime(NamedTuple):
    """Time of an operation by its instructions, and the counted unit: "stages", "rows", "updates" or "windows"."""

    time_s: float
    counted_by: str


def counted_time(instruction: HloInstruction, target: Target, clock_hz: float) -> CountedTime | None:
    """Return the time of an operation without cycles from the compiler; None for one that is not counted here.

    Args:
        instruction: a sort, ..., a fusion around one, or the custom call "TopK".
        target: the system.
        clock_hz: clock of its cores, Hz.
    """
    located = _inside(instruction)
    if located is None:
        return None
    alus, cores_hz = vector_alus(target), clock_hz * target.chip.cores / target.chip.replicas
    inner, arguments = located
    if inner.opcode == "sort":
        return CountedTime(_sort_cycles(inner, alus) / cores_hz, "stages")
    if inner.opcode == "custom-call":
        return CountedTime(_top_k_cycles(inner, alus) / cores_hz, "stages")
    if inner.opcode in ("gather", "scatter"):
        is_on_chip = _is_on_chip(inner, arguments, instruction)
        return CountedTime(_rows_s(inner, is_on_chip, cores_hz), "rows" if inner.opcode == "gather" else "updates")
    return CountedTime(_window_cycles(inner) / cores_hz, "windows")


def vector_alus(target: Target) -> int:
    """Return the number of vector instructions that a core starts in a cycle, without loads and stores."""
    return _VECTOR_ALUS.get(target.chip.name, _LATER_ALUS)


def _inside(instruction: HloInstruction) -> tuple[HloInstruction, tuple[HloInstruction, ...]] | None:
    """Return the operation to count, itself or the one in a fusion, and the fusion's arguments."""
    if instruction.opcode in _COUNTED or instruction.call_target == "TopK":
        return instruction, ()
    if instruction.opcode != "fusion":
        return None
    for inner in instruction.bodies[0].instructions.values():
        if located := _inside(inner):
            return located[0], located[1] or instruction.operands
    return None


def _sort_cycles(sort: HloInstruction, alus: int) -> float:
    shape, match = sort.shapes[0], _DIMENSION.search(sort.text)
    axis = int(match[1]) if match else len(shape.dims) - 1
    levels = _levels(shape.dims[axis])
    # Level n of a bitonic network has n stages.
    cycles = levels * (levels + 1) / 2 * _stage_cycles(sort, len(sort.shapes), alus)
    if shape.minor_to_major[:1] == (axis,):
        # Elements in one vector are compared by rotating it: seven levels of the network for 128 lanes.
        # Each level above the seventh ends with seven such stages.
        short = min(levels, 7)
        cycles += (short * (short + 1) / 2 + short * (levels - short)) * _LANE_CYCLES * len(sort.shapes)
    return _vectors(shape) * cycles


def _top_k_cycles(top_k: HloInstruction, alus: int) -> float:
    """Count sorted runs of k elements, and then repeated merges, each of which halves the rest."""
    whole = top_k.operands[0].shapes[0]
    sizes = zip(top_k.shapes[0].dims, whole.dims, strict=False)
    levels = _levels(min((size for size, before in sizes if size != before), default=1))
    stages = levels * (levels + 1) / 2 + 2 * (levels + 1)
    return _vectors(whole) * stages * _stage_cycles(top_k, 2, alus)


def _stage_cycles(instruction: HloInstruction, arrays: int, alus: int) -> float:
    """Return cycles of one stage for a vector of every array: the larger of stores and arithmetic.

    A comparison is for two vectors; an exchange is a selection for each vector.
    """
    steps = (step for body in instruction.bodies for step in body.instructions.values())
    compared = sum(step.opcode not in _NO_WORK for step in steps)
    return max(float(arrays), (compared / 2 + arrays) / alus)


def _rows_s(access: HloInstruction, is_on_chip: bool, cores_hz: float) -> float:
    """Return the time of a gather or a scatter, seconds."""
    is_read, (sizes, rows) = access.opcode == "gather", _rows(access)
    if is_on_chip:
        cycles = max(_ROW_CYCLES if is_read else _UPDATE_CYCLES, _tiles(access.operands[0].shapes[0], sizes))
        return rows * cycles / cores_hz
    return max(LATENCY_S, rows * ROW_S) if is_read else rows * UPDATE_S


def _rows(access: HloInstruction) -> tuple[Sequence[int], float]:
    """Return the sizes of one row along the dimensions of the source array, and the number of rows."""
    table = access.operands[0].shapes[0]
    if access.opcode == "gather":
        match = _SLICE.search(access.text)
        sizes = _numbers(match[1]) if match else table.dims
        return sizes, math.prod(access.shapes[0].dims) / max(1, math.prod(sizes))
    updates, match = access.operands[-1].shapes[0], _UPDATE.search(access.text)
    window = [updates.dims[axis] for axis in _numbers(match[1])] if match else []
    sizes = [1] * (len(table.dims) - len(window)) + window
    return sizes, math.prod(updates.dims) / max(1, math.prod(window))


def _is_on_chip(access: HloInstruction, arguments: Sequence[HloInstruction], around: HloInstruction) -> bool:
    """Return whether rows are in on-chip memory: placed there, or copied there by the operation itself."""
    shape, number = access.operands[0].shapes[0], access.operands[0].parameter_number
    if number is not None and number < len(arguments) and arguments[number].shapes:
        shape = arguments[number].shapes[0]
    scratch = _SCRATCH.search(around.text)
    return shape.memory_space == 1 or (scratch is not None and int(scratch[1]) >= shape.padded_bytes)


def _tiles(table: Shape, sizes: Sequence[int]) -> float:
    """Return the number of vectors that a row touches."""
    order = table.minor_to_major
    if len(sizes) != len(order):
        return math.ceil(math.prod(sizes) / VECTOR)
    steps = (128, 8, *[1] * len(order))
    return math.prod(math.ceil(sizes[axis] / step) for axis, step in zip(order, steps, strict=False))


def _window_cycles(pooling: HloInstruction) -> float:
    extents = pooling.operands[0].shapes[0].dims
    # A window that always covers its whole axis is one sum or maximum over it, computed once.
    positions = math.prod(
        1 if window.size > 1 and window.size >= 2 * extent - 1 else window.size
        for window, extent in zip(window_of(pooling.text), extents, strict=False)
    )
    if pooling.opcode == "reduce-window":
        return _vectors(pooling.shapes[0]) * positions * _WINDOW_CYCLES
    # Two passes: find the maximum, then add to it.
    return 2 * _vectors(pooling.operands[1].shapes[0]) * positions * _WINDOW_CYCLES


def _vectors(shape: Shape) -> float:
    return math.ceil(math.prod(shape.dims) / VECTOR)


def _levels(size: int) -> int:
    return max(1, math.ceil(math.log2(max(size, 2))))


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
