"""`WeightMemory`: the address of each tile, each block of parameters and each table, and their bytes.

Idea: addresses are assigned first. The bytes are made at the end, if at all. The time of a program of a hundred million
weights can be found without them.

Rule: items with the same key are stored once. An item starts at a whole block of 2 KiB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator, Mapping

import numpy as np

from anytpu.chip.isa.design import BLOCK_BYTES, Design
from anytpu.errors import CapacityError
from anytpu.program.remembered import Remembered

_LAYOUTS: Remembered[tuple[Design, int, Mapping[Hashable, int]]] = Remembered()
"""The chip and size of a Weight Memory and each item's address, to compile its network for another batch."""

ItemsMaker = Callable[[], np.ndarray]
"""Makes the bytes of items: an array whose first axis is the number of items that were requested."""


class WeightMemory:
    """The Weight Memory of a program under construction."""

    def __init__(self, design: Design, *, by_content: bool = True):
        """Start empty; without `by_content`, arrays are equal only if they are the same object."""
        self._design, self._by_content = design, by_content
        self._digests: dict[int, bytes] = {}
        self._addresses: dict[Hashable, int] = {}
        self._parts: list[tuple[int, int, ItemsMaker]] = []
        self._blocks = 0

    def reserve(self, key: Hashable, count: int, blocks: int, make: ItemsMaker) -> int:
        """Return the first block of `count` items of `blocks` blocks each; `make` is called when bytes are needed.

        Args:
            key: identity of the items; the same key gives the same address.
            count: number of consecutive items.
            blocks: number of blocks of each item.
            make: returns their bytes, `(count, ...)`.
        """
        if key in self._addresses:
            return self._addresses[key]
        address = self._addresses[key] = self._blocks
        self._parts.append((address, blocks, make))
        self._blocks += count * blocks
        return address

    def identity(self, array: np.ndarray) -> Hashable:
        """Return a hashable identity of an array, as a part of a key. The array must live as long as this object."""
        if not self._by_content:
            return id(array)
        if id(array) not in self._digests:
            # Broadcast axes (stride 0) repeat the same elements: hash them once.
            part = array[tuple(slice(None if stride else 1) for stride in array.strides)]
            digest = hashlib.blake2b(np.ascontiguousarray(part).data, digest_size=16).digest()
            self._digests[id(array)] = digest + str((part.shape, array.shape, array.dtype)).encode()
        return self._digests[id(array)]

    def check(self, name: str) -> None:
        """Raise CapacityError when the program `name` has more weights than there is memory."""
        needed, maximum = self._blocks * BLOCK_BYTES, self._design.weight_memory_bytes
        if needed > maximum:
            raise CapacityError(
                f"{name!r} needs {needed:,} bytes of Weight Memory, and the chip has {maximum:,} (weights lie in whole "
                f"tiles of {self._design.array} by {self._design.array}). Make the model smaller, or split it in two "
                "and compile each part."
            )

    def image(self, *, filled: bool = True, known: np.ndarray | None = None) -> np.ndarray:
        """Return the bytes, uint8; without `filled`, zeros that take no memory.

        Args:
            filled: whether to make the bytes.
            known: the bytes of the same network for another batch; returned, without a copy, if they are equal.
        """
        size = self._blocks * BLOCK_BYTES
        if not filled:
            return np.broadcast_to(np.uint8(0), (size,))
        layout = self._design, size, self._addresses
        if known is not None and (_LAYOUTS.get(known) == layout or self._is_in(known)):
            image = known
        else:
            image = np.zeros(size, np.uint8)
            for place, rows in self._parts_in(image):
                place[...] = rows
        if self._by_content:
            _LAYOUTS.keep(image, layout)
        return image

    def _is_in(self, image: np.ndarray) -> bool:
        """Return whether an image has these bytes."""
        if len(image) != self._blocks * BLOCK_BYTES:
            return False
        return all(np.array_equal(place, rows) for place, rows in self._parts_in(image))

    def _parts_in(self, image: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the view of each part of an image and its bytes, uint8 `(items, bytes)`, one part at a time."""
        for address, blocks, make in self._parts:
            things = make()
            width = blocks * BLOCK_BYTES
            rows = np.ascontiguousarray(things).view(np.uint8).reshape(len(things), -1)
            start = address * BLOCK_BYTES
            yield image[start : start + len(rows) * width].reshape(len(rows), width)[:, : rows.shape[1]], rows
