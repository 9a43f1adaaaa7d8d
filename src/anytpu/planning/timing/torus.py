"""`Span`: the wires of the torus over which a group of devices communicates.

Idea: chips form a grid, each wired to its neighbours. If a side of the grid is as long as the pod's, its ends are wired
together to a ring. From v4 on, so are those of a side made of whole cubes of four. A group of devices lies along some
sides of the grid. Along a ring a chip sends in both directions at once. Along a line it has the bandwidth of one
direction, because the middle has to carry data for both ends. So a group's bandwidth is the sum over its sides' links.

Rule: a group that does not fill sides of the grid is treated as a compact block of it, without rings.

Source: https://jax-ml.github.io/scaling-book/sharding and the wrap-around rules on the pages of each chip under
https://cloud.google.com/tpu/docs.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from anytpu.planning.target import Target

_POD_SIDES = {"v2": 16, "v3": 32, "v5e": 16, "v6e": 16}


@dataclasses.dataclass(frozen=True, slots=True)
class Side:
    """One side of the block of chips that a group fills: its length, and whether it is a ring."""

    chips: int
    is_ring: bool

    @property
    def links(self) -> int:
        """Number of links of a chip whose bandwidth adds up along this side."""
        return 2 if self.is_ring and self.chips > 2 else 1

    @property
    def hops(self) -> int:
        """Number of hops of data that visits every chip of the side."""
        return self.chips // 2 if self.links == 2 else self.chips - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """The chips of a group.

    Attributes:
        sides: sides of the block, without those of length 1.
        cores: number of the group's devices on one chip.
        share: the group's share of the chip's links: a half if each core of a chip is in another group.
    """

    sides: tuple[Side, ...]
    cores: int
    share: float

    @property
    def chips(self) -> int:
        """Number of chips of the block."""
        return math.prod(side.chips for side in self.sides)

    @property
    def links(self) -> float:
        """Number of links of a chip that the group has, over all sides."""
        return sum(side.links for side in self.sides) * self.share

    @property
    def hops(self) -> int:
        """Number of hops along all sides, one after the other."""
        return sum(side.hops for side in self.sides)


def span_of(target: Target, devices: tuple[int, ...]) -> Span:
    """Return the chips of a group of devices.

    Args:
        target: the slice.
        devices: numbers of the group's devices.

    Example:
        >>> from anytpu.planning.target import target_named
        >>> span = span_of(target_named("v5e-16"), tuple(range(16)))
        >>> span.chips, span.links, span.hops
        (16, 2.0, 6)
    """
    per_chip = target.devices // target.chips or 1
    whole = tuple(_side(target, chips) for chips in target.chip_bounds if chips > 1)
    if len(devices) >= target.devices:
        return Span(whole, per_chip, 1.0)
    # Neighbouring numbers are the cores of one chip.
    cores = len(devices) // len({number // per_chip for number in devices}) if devices else 1
    return Span(_block(whole, max(1, len(devices) // cores)), cores, cores / per_chip)


def _side(target: Target, chips: int) -> Side:
    pod_side = _POD_SIDES.get(target.chip.name)
    if pod_side:
        return Side(chips, chips == pod_side)
    return Side(chips, all(bound % 4 == 0 for bound in target.chip_bounds))


def _block(whole: tuple[Side, ...], chips: int) -> tuple[Side, ...]:
    """Return the sides of a block of so many chips: whole sides of the grid if any fit, the best wired first."""
    if chips <= 1:
        return ()
    choices = [
        chosen
        for count in range(1, len(whole) + 1)
        for chosen in itertools.combinations(whole, count)
        if math.prod(side.chips for side in chosen) == chips
    ]
    if choices:
        return max(choices, key=lambda chosen: sum(side.links for side in chosen))
    return tuple(Side(side, False) for side in _factors(chips, max(1, len(whole))) if side > 1)


def _factors(chips: int, count: int) -> list[int]:
    """Factor a number into so many factors, as equal as possible."""
    sides = []
    for left in range(count, 0, -1):
        ideal = chips ** (1 / left)
        side = min((d for d in range(1, chips + 1) if chips % d == 0), key=lambda d: abs(d - ideal))
        sides.append(side)
        chips //= side
    return sides
