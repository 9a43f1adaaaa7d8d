"""`holding_slices`: the smallest slices that would hold a step that does not fit.

Idea: over more devices each takes fewer examples; another chip has more memory. Both follow from the memory of the step
as a function of its batch.

Rule: only slices that exist are named, and of another chip only those that are sold to new users. Padding differs a
little between chips, so that the number is an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from anytpu.planning.advice.line import MemoryLine
from anytpu.planning.limits import limit_bytes
from anytpu.planning.prices import read_prices
from anytpu.planning.records import Memory
from anytpu.planning.target import Target, every_target
from anytpu.units import format_bytes


def holding_slices(target: Target, line: MemoryLine, batch_size: int) -> list[tuple[Target, Memory]]:
    """Return the smallest slice of the same chip that holds a batch, and the cheapest of another where it costs less.

    Args:
        target: the system on which it does not fit.
        line: the memory of a device there as a function of the batch.
        batch_size: the global batch.
    """
    fitting = list(_holding(target, line, batch_size))
    own = [one for one in fitting if one[0].chip == target.chip][:1]
    most = usd_per_hour(own[0][0]) if own else math.inf
    others = [one for one in fitting if one[0].chip != target.chip and (not own or usd_per_hour(one[0]) < most)]
    return [*own, *sorted(others, key=lambda one: (usd_per_hour(one[0]), one[0].chips))[:1]]


def roomier_chips(target: Target, need_bytes: int) -> list[tuple[Target, str]]:
    """Return the slice of as many devices, of the fewest chips, that holds what a device needs; and its memory.

    Args:
        target: the system on which it does not fit.
        need_bytes: the need of a device.
    """
    for other in _candidates(target):
        if other.devices == target.devices and (limit := limit_bytes(other)) >= need_bytes:
            return [(other, f"a device has {format_bytes(limit)}.")]
    return []


def _holding(target: Target, line: MemoryLine, batch_size: int) -> Iterator[tuple[Target, Memory]]:
    for other in _candidates(target):
        limit = limit_bytes(other)
        need = line.fixed_bytes + line.growing(batch_size) * target.devices / other.devices
        if need <= limit and batch_size % other.devices == 0:
            yield other, Memory(int(need), limit)


def _candidates(target: Target) -> list[Target]:
    """Return the slices of the same chip and of those that are still rented out, the fewest chips first."""
    prices = read_prices()
    old = {chip for chip, price in prices.items() if price.note.startswith("an old generation")}
    rented = (other for other in every_target() if other.chip == target.chip or other.chip.name not in old)
    return sorted(rented, key=lambda other: other.chips)


def usd_per_hour(target: Target) -> float:
    """Return the price of an hour of a slice on demand; infinity where nobody knows it."""
    price = read_prices().get(target.chip.name)
    return target.chips * price.usd_per_chip_hour if price and price.usd_per_chip_hour else math.inf
