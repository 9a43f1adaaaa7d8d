"""`ModelLayout`: a mesh of cores, and the partition of each array of a model over it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping

from anytpu.program.placed import axes_text
from anytpu.program.rematerialising import Remat

Spec = tuple[tuple[str, ...], ...]
"""For each axis of an array the mesh axes that split it, () if none."""

WORDS_RATIO = 8
"""A matrix with more than this times as many rows as columns is an embedding, as far as shapes tell. Its columns are
split, because its rows are looked up: no device then needs the ids or the updates of the others."""

MIN_FEATURES = 128
"""Minimum number of features of a shard of such an array: the lanes of a tile; fewer leave some empty."""

MIN_SHARD_ELEMENTS = 1024
"""Minimum number of elements of a shard that "fsdp" makes: gathering a smaller one costs more than its memory."""


@dataclasses.dataclass(frozen=True)
class ModelLayout:
    """A mesh, and the partition of each weight over it.

    Attributes:
        name: short name for reports, such as "fsdp".
        axes: (name, size) of each mesh axis.
        row_axes: mesh axes that split the examples of a batch.
        spec_of: returns the partition of a weight, given its name and shape; None if it follows other weights, or is
            whole.
        patterns: patterns that must each match a weight.
        is_literal: whether activations are left to XLA and to the model's own constraints.
        inner: mesh axes by position for axes of the batch that are not its rows: {1: ("sequence",)} splits sequences.
        outputs: patterns of a LayoutMap that must each match the output of a layer.
        specs: for a layout that a search chose for one model, the partition of each array by its name, in order.
        shapes: the shape of each of these arrays.
        is_open: whether a strategy chooses a layout for each model in place of this one, as "auto" does.
        remat: rematerialisation of the step, a name of `anytpu.program.rematerialising.REMATS`, or "" for none.
    """

    name: str
    axes: tuple[tuple[str, int], ...]
    row_axes: tuple[str, ...]
    spec_of: Callable[[str, tuple[int, ...]], Spec | None]
    patterns: tuple[str, ...] = ()
    is_literal: bool = False
    inner: Mapping[int, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    specs: Mapping[str, Spec] = dataclasses.field(default_factory=dict, repr=False)
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict, repr=False)
    is_open: bool = False
    remat: Remat = ""

    @property
    def storage_axes(self) -> tuple[str, ...]:
        """Mesh axes that split other parts of a batch: where they split a weight, it is gathered before its use."""
        return (*self.row_axes, *(part for parts in self.inner.values() for part in parts))

    @property
    def devices(self) -> int:
        """Number of devices of the mesh."""
        return math.prod(size for _, size in self.axes)

    def __str__(self) -> str:
        if self.is_open:
            return f"{self.name}, chosen for each model"
        return f"{self.name} over {axes_text(self.axes)}{self.remat and f', rematerialised ({self.remat})'}"

    def __repr__(self) -> str:
        return f"<ModelLayout: {self}>"


def split_largest(
    shape: tuple[int, ...],
    parts: tuple[str, ...],
    sizes: Mapping[str, int],
    taken: Spec = (),
    first: Collection[int] = (),
) -> Spec:
    """Return a partition whose largest divisible axis is split over mesh axes; whole if the shards would be too small.

    Of an embedding, as far as shapes tell, the features are split, if each shard has enough of them.

    Args:
        shape: shape of the array.
        parts: the mesh axes, all for one axis of the array.
        sizes: size of each mesh axis.
        taken: partition so far; axes that it splits are left alone.
        first: indices of axes that are split before larger ones.

    Example:
        >>> split_largest((512, 2048), ("data",), {"data": 8}), split_largest((32000, 1024), ("data",), {"data": 8})
        (((), ('data',)), ((), ('data',)))
    """
    pieces = math.prod(sizes[part] for part in parts)
    spec = [*taken, *[()] * (len(shape) - len(taken))]
    shard_elements = math.prod(shape) // math.prod(sizes[part] for split in taken for part in split)
    if shard_elements < MIN_SHARD_ELEMENTS * pieces:
        return taken
    free = [axis for axis, size in enumerate(shape) if not spec[axis] and size % pieces == 0]
    if not free or pieces == 1:
        return taken
    largest, *others = sorted([axis for axis in free if axis in first] or free, key=lambda axis: -shape[axis])
    if others and len(shape) == 2 and shape[0] > WORDS_RATIO * shape[1] >= WORDS_RATIO * MIN_FEATURES * pieces:
        largest = 1
    spec[largest] = parts
    return tuple(spec)
