"""`WeightMemory`: where each tile, each block of parameters and each table lies, and the bytes of it all.

Idea: addresses are given first, bytes are made at the end, if at all: who only wants the time of a program of a hundred
million weights need not have them.

Rule: what has the same key is there once. A thing starts at a whole block of 2 KiB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable

import numpy as np

from anytpu.chip.design import BLOCK_BYTES, Design
from anytpu.errors import CapacityError

Maker = Callable[[], np.ndarray]
"""Makes the bytes of a thing: an array whose first axis is of as many things as were asked for."""


class WeightMemory:
    """The Weight Memory of a program that is being made."""

    def __init__(self, design: Design, *, by_content: bool = True):
        """Start with nothing; not `by_content`: two arrays are the same only when they are one."""
        self._design, self._by_content = design, by_content
        self._digests: dict[int, bytes] = {}
        self._addresses: dict[Hashable, int] = {}
        self._parts: list[tuple[int, int, Maker]] = []
        self._blocks = 0

    def reserve(self, key: Hashable, count: int, blocks: int, make: Maker) -> int:
        """Return the block where `count` things of `blocks` blocks each start; `make` is called when they are wanted.

        Args:
            key: what they are; the same key gives the same address.
            count: how many, one after another.
            blocks: of each.
            make: returns their bytes, `(count, ...)`.
        """
        if key in self._addresses:
            return self._addresses[key]
        address = self._addresses[key] = self._blocks
        self._parts.append((address, blocks, make))
        self._blocks += count * blocks
        return address

    def identity(self, array: np.ndarray) -> Hashable:
        """Return what tells an array from others, as a part of a key. The array must live as long as this."""
        if not self._by_content:
            return id(array)
        if id(array) not in self._digests:
            # What is repeated without being there (an array that was broadcast) is looked at once.
            part = array[tuple(slice(None if stride else 1) for stride in array.strides)]
            digest = hashlib.blake2b(np.ascontiguousarray(part).data, digest_size=16).digest()
            self._digests[id(array)] = digest + str((part.shape, array.shape, array.dtype)).encode()
        return self._digests[id(array)]

    def check(self, name: str) -> None:
        """Raise CapacityError when the program `name` has more weights than there is memory."""
        needed, most = self._blocks * BLOCK_BYTES, self._design.weight_memory_bytes
        if needed > most:
            raise CapacityError(
                f"{name!r} needs {needed:,} bytes of Weight Memory, and the chip has {most:,} (weights lie in whole "
                f"tiles of {self._design.array} by {self._design.array}). Make the model smaller, or split it in two "
                "and compile each part."
            )

    def image(self, *, filled: bool = True) -> np.ndarray:
        """Return the bytes, uint8; not `filled`: zeros that take no memory."""
        size = self._blocks * BLOCK_BYTES
        if not filled:
            return np.broadcast_to(np.uint8(0), (size,))
        image = np.zeros(size, np.uint8)
        for address, blocks, make in self._parts:
            things = make()
            width = blocks * BLOCK_BYTES
            rows = np.ascontiguousarray(things).view(np.uint8).reshape(len(things), -1)
            start = address * BLOCK_BYTES
            image[start : start + len(rows) * width].reshape(len(rows), width)[:, : rows.shape[1]] = rows
        return image
