"""`fuse`: fuse products with the Activates that read their accumulators into layers, which run as one matrix product.

Idea: a compiled layer is a long sequence of pairs. In a pair, some passes compute the sums of a range of rows for one
block of outputs, and an Activate turns them into integers. A pair need not go through the accumulators, if nothing
reads them later. Pairs that send the same rows into the array, against different tiles, are one matrix product with
more columns. Pairs that send the next rows against the same tiles are one product with more rows.

Rule: a pair moves up to another only past pairs that neither write the data it reads nor access the data it writes.
Reads from the host move before the products that do not need them. Writes to the host move after the products that do
not overwrite their data. A step that does not fit the pattern stays in its place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from anytpu.chip.isa.design import UNIT_BYTES, Design
from anytpu.chip.machine.intervals import Interval, IntervalSet
from anytpu.chip.machine.steps import ActivateStep, BufferPlane, MachineStep, PassInput, ProductStep, TransferStep
from anytpu.chip.machine.windows import cover

MAX_DEPTH = 2**17
"""Maximum rows of the stacked tiles of a joined product: as float32, 128 MiB of weights of 256 columns."""


@dataclasses.dataclass(frozen=True)
class LayerBlock:
    """A block of outputs: its tiles, one for each feed of the layer, and the Activate that finishes it."""

    tiles: tuple[int, ...]
    activate: ActivateStep


@dataclasses.dataclass(frozen=True)
class LayerStep(MachineStep):
    """Rows that go through the array against the tiles of several blocks of outputs.

    Attributes:
        feeds: the inputs, pass by pass.
        rows: number of rows.
        blocks: the blocks of outputs.
    """

    feeds: tuple[PassInput, ...]
    rows: int
    blocks: tuple[LayerBlock, ...]


_NOTHING = IntervalSet()


def fuse(steps: Sequence[MachineStep], design: Design) -> tuple[MachineStep, ...]:
    """Return equivalent steps, with layers in place of products and Activates where possible."""
    # 1. Merge products that accumulate into the same sums.
    joined = list(_joined(steps))
    # 2. Liveness of the accumulators, backwards: a pair may be fused only if no later step reads its sums.
    dead = _dead_after(joined, design)
    # 3. Collect groups of pairs that commute; a step that does not fit closes the group.
    fused: list[MachineStep] = []
    group = _PairGroup()
    number = 0
    while number < len(joined):
        step, pair = joined[number], _pair(joined, number, dead)
        if pair is None:
            number += 1
            if not group.postpones(step):
                fused += [] if group.lets_pass(step) else group.close()
                fused.append(step)
            continue
        if not group.accepts(*pair):
            fused += group.close()
        group.take(*pair)
        number += 2
    return tuple(fused + group.close())


def _joined(steps: Sequence[MachineStep]) -> Iterator[MachineStep]:
    """Yield the steps; a product that adds to the sums of the previous product is merged into it."""
    waiting = _ProductChain()
    for step in steps:
        if isinstance(step, ProductStep):
            if not waiting.accepts(step):
                yield from waiting.close()
            waiting.take(step)
        else:
            if not _passes(step, waiting.read, _NOTHING):
                yield from waiting.close()
            yield step
    yield from waiting.close()


class _ProductChain:
    """Consecutive products, each of which adds to the sums of the first."""

    def __init__(self):
        self.read = IntervalSet()
        self._products: list[ProductStep] = []
        self._depth = 0

    def accepts(self, product: ProductStep) -> bool:
        if not self._products or not product.accumulate or self._depth + _depth(product) > MAX_DEPTH:
            return False
        first = self._products[0]
        same_place = (first.accumulator, first.rows) == (product.accumulator, product.rows)
        return same_place and kind_of(first.feeds[0]) == kind_of(product.feeds[0])

    def take(self, product: ProductStep) -> None:
        self._products.append(product)
        self._depth += _depth(product)
        self.read.add(_sources(product))

    def close(self) -> list[ProductStep]:
        products = self._products
        self.__init__()
        if len(products) < 2:
            return products
        feeds = tuple(feed for product in products for feed in product.feeds)
        tiles = tuple(tile for product in products for tile in product.tiles)
        return [dataclasses.replace(products[0], feeds=feeds, tiles=tiles)]


def _depth(product: ProductStep) -> int:
    return sum(feed.depth for feed in product.feeds)


def _passes(step: MachineStep, read: IntervalSet, written: IntervalSet) -> bool:
    """Return whether a step is a transfer that commutes with earlier accesses to these Unified Buffer ranges."""
    if not isinstance(step, TransferStep):
        return False
    return not (written.meet(_units(step)) or (step.inwards and read.meet(_units(step))))


def _units(transfer: TransferStep) -> list[Interval]:
    return [(transfer.address, transfer.address + transfer.units)]


def _host_bytes(transfer: TransferStep) -> list[Interval]:
    return [(transfer.host_address, transfer.host_address + transfer.units * UNIT_BYTES)]


def kind_of(feed: PassInput) -> tuple[bool, bool]:
    """Return whether the numbers of a feed are unsigned, and whether they are 16-bit."""
    return feed.unsigned, feed.plane.high_offset is not None


def _dead_after(steps: Sequence[MachineStep], design: Design) -> list[bool]:
    """Return for each step whether no later step reads the accumulators that it uses before they are overwritten."""
    live = np.zeros(design.accumulator_rows, bool)
    dead = [True] * len(steps)
    for index in range(len(steps) - 1, -1, -1):
        step = steps[index]
        if isinstance(step, ProductStep):
            rows = slice(step.accumulator, step.accumulator + step.rows)
            dead[index] = not live[rows].any()
            live[rows] = step.accumulate
        elif isinstance(step, ActivateStep) and step.operation == "scale":
            rows = slice(step.accumulator, step.accumulator + step.rows)
            dead[index] = not live[rows].any()
            live[rows] = True
    return dead


def _pair(steps: Sequence[MachineStep], number: int, dead: Sequence[bool]) -> tuple[ProductStep, ActivateStep] | None:
    """Return a product and the Activate after it, if the Activate takes all its sums and nothing else reads them."""
    if number + 1 == len(steps):
        return None
    product, activate = steps[number], steps[number + 1]
    if not isinstance(product, ProductStep) or not isinstance(activate, ActivateStep) or product.accumulate:
        return None
    if activate.operation != "scale" or not dead[number + 1]:
        return None
    if (product.accumulator, product.rows) != (activate.accumulator, activate.rows):
        return None
    # An Activate that overwrites the product's source must run after the whole product.
    return None if IntervalSet(_sources(product)).meet(_targets(activate)) else (product, activate)


class _PairGroup:
    """Consecutive pairs that commute with each other, and the writes to the host that follow them."""

    def __init__(self):
        self._after: list[TransferStep] = []
        self._taken_out = IntervalSet()
        self._layers: dict[tuple[tuple[PassInput, ...], int], tuple[int, list[LayerBlock]]] = {}
        self._read = IntervalSet()
        self._written = IntervalSet()

    def accepts(self, product: ProductStep, activate: ActivateStep) -> bool:
        targets = _targets(activate)
        return not (self._written.meet([*_sources(product), *targets]) or self._read.meet(targets))

    def take(self, product: ProductStep, activate: ActivateStep) -> None:
        key = product.feeds, product.rows
        _, blocks = self._layers.setdefault(key, (product.number, []))
        blocks.append(LayerBlock(product.tiles, activate))
        self._read.add(_sources(product))
        self._written.add(_targets(activate))

    def lets_pass(self, step: MachineStep) -> bool:
        """Return whether a step that is not in a pair may run before the pairs and the postponed writes to the host."""
        if not isinstance(step, TransferStep) or not _passes(step, self._read, self._written):
            return False
        return not self._taken_out.meet(_host_bytes(step))

    def postpones(self, step: MachineStep) -> bool:
        """Postpone a write to the host until after the pairs, and return True; False for all other steps."""
        if not isinstance(step, TransferStep) or step.inwards or not self._layers:
            return False
        self._after.append(step)
        self._taken_out.add(_host_bytes(step))
        self._read.add(_units(step))
        return True

    def close(self) -> list[MachineStep]:
        layers: list[LayerStep] = []
        for (feeds, rows), (number, blocks) in self._layers.items():
            layer = LayerStep(number, feeds, rows, tuple(blocks))
            # A layer was compiled in chunks of rows: join chunks that follow each other.
            if layers and _follows(layers[-1], layer):
                layers[-1] = dataclasses.replace(
                    layers[-1], rows=layers[-1].rows + rows, blocks=_of_rows(layers[-1], rows)
                )
            else:
                layers.append(layer)
        steps = [*layers, *self._after]
        self.__init__()
        return steps


def _follows(first: LayerStep, second: LayerStep) -> bool:
    """Return whether `second` is the same layer as `first` for the rows that follow."""
    if second.feeds != tuple(feed.later(first.rows) for feed in first.feeds) or len(first.blocks) != len(second.blocks):
        return False
    return all(
        block.tiles == other.tiles and _essence(block.activate.later(first.rows)) == _essence(other.activate)
        for block, other in zip(first.blocks, second.blocks, strict=True)
    )


def _essence(activate: ActivateStep) -> ActivateStep:
    """Return an Activate without the fields that differ between the row ranges of one layer."""
    return dataclasses.replace(activate, number=0, rows=0, accumulator=0)


def _of_rows(layer: LayerStep, more: int) -> tuple[LayerBlock, ...]:
    rows = layer.rows + more
    return tuple(
        dataclasses.replace(block, activate=dataclasses.replace(block.activate, rows=rows)) for block in layer.blocks
    )


def _sources(product: ProductStep) -> list[Interval]:
    """Return ranges of the Unified Buffer, in units, that contain all reads of a product."""
    ranges = IntervalSet()
    for feed in product.feeds:
        patches, _ = cover(feed.window, product.rows, feed.first_tap, feed.taps)
        first = min((patch.source_row for patch in patches), default=0)
        last = max((patch.source_row + patch.source_span for patch in patches), default=-1)
        ranges.add(_extents(feed.plane, first, last + 1))
    return list(ranges)


def _targets(activate: ActivateStep) -> list[Interval]:
    return _extents(activate.target, 0, activate.rows)


def _extents(plane: BufferPlane, first: int, stop: int) -> list[Interval]:
    """Return the ranges, in units, of rows `first` up to `stop` of a plane: one, or two for 16 bits."""
    starts = [plane.address] if plane.high_offset is None else [plane.address, plane.address + plane.high_offset]
    return [(start + first * plane.pitch, start + stop * plane.pitch) for start in starts]
