"""`slices_that_hold`: the smallest slice of each chip that would hold a step that does not fit.

Idea: over more devices each takes fewer examples, and another chip has more memory. Both follow from the memory of the
step as a function of its batch. The minimum time of the step on each slice follows from its FLOPs and bytes.

Rule: only slices that exist are named, and of other chips only those sold to new users. Padding differs a little
between chips, so the memory is an estimate. Times and costs are floors, compared only with each other.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping

from anytpu.errors import AnyTPUError
from anytpu.planning.floor import least_step_s, work_of
from anytpu.planning.memory.batches import MemoryLine
from anytpu.planning.records import Holding, Prediction
from anytpu.planning.records.cost import Price
from anytpu.planning.records.target import Target, every_target, limit_bytes
from anytpu.program.program import Program


def slices_that_hold(
    prediction: Prediction,
    line: MemoryLine | None,
    prices: Mapping[str, Price],
    program: Program | None = None,
) -> tuple[Holding, ...]:
    """Return the smallest slice of each chip that holds a step, the fewest chips first.

    Args:
        prediction: prediction of the step, which does not fit.
        line: memory of a device as a function of the batch. None if it is not known: then only slices with as many
            devices count, and each device needs as much.
        prices: price of an hour of each chip, by the chip's name.
        program: the step, for its minimum time. None: that is not asked for, and the step brings its own mesh, for one
            number of devices.
    """
    is_placed, work = program is None or program.placement is not None, None
    if program is not None:
        with contextlib.suppress(AnyTPUError):  # A step that cannot be traced here.
            work = work_of(program)
    by_chip: dict[str, Holding] = {}
    for other, need in _fitting_slices(prediction, line if not is_placed else None, prices):
        # The slices come with the fewest chips first, so the first of a chip is its smallest.
        if other.chip.name not in by_chip:
            price = prices.get(other.chip.name)
            least_s = least_step_s(work, other) if work is not None else None
            by_chip[other.chip.name] = Holding(other, prediction.batch_size, need, limit_bytes(other), least_s, price)
    return tuple(by_chip.values())


def _fitting_slices(
    prediction: Prediction, line: MemoryLine | None, prices: Mapping[str, Price]
) -> Iterator[tuple[Target, int]]:
    target, batch, memory = prediction.target, prediction.batch_size, prediction.memory
    for other in _candidates(target, prices):
        if line is not None and batch:
            need = int(line.fixed_bytes + line.growing_bytes(batch) * target.devices / other.devices)
            is_even = batch % other.devices == 0
        else:
            need, is_even = memory.peak_bytes if memory else 0, other.devices == target.devices
        if is_even and need <= limit_bytes(other):
            yield other, need


def _candidates(target: Target, prices: Mapping[str, Price]) -> list[Target]:
    """Return the slices of the same chip and of chips that are still rented out, the fewest chips first."""
    # The notes of such chips in `prices.csv` begin with these words.
    old = {chip for chip, price in prices.items() if price.note.startswith("an old generation")}
    rented = (other for other in every_target() if other.chip == target.chip or other.chip.name not in old)
    return sorted(rented, key=lambda other: other.chips)


def cheapest(holding: tuple[Holding, ...]) -> Holding | None:
    """Return the slice with the lowest cost of a step at its floor, of those whose price is known."""
    return min(
        (slice_ for slice_ in holding if slice_.least_usd_per_step is not None),
        key=lambda slice_: (slice_.least_usd_per_step or 0.0, slice_.target.chips),
        default=None,
    )


def fastest(holding: tuple[Holding, ...]) -> Holding | None:
    """Return the slice with the shortest step at its floor."""
    return min(
        (slice_ for slice_ in holding if slice_.least_step_s is not None),
        key=lambda slice_: (slice_.least_step_s or math.inf, slice_.target.chips),
        default=None,
    )
