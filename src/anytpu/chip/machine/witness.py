"""The witness: an image run with its products made by the literal systolic array, pass by pass and cycle by cycle.

It shares decoding and the other units with the fast machine, but not the computation of products. It is slow (some ten
thousand cycles a second of an array of 256 by 256), and serves as a reference for comparisons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from anytpu.chip.checking import check
from anytpu.chip.image.image import Image
from anytpu.chip.machine.decoding import Step, decode
from anytpu.chip.machine.execution import execute
from anytpu.chip.machine.memories import ChipMemories
from anytpu.chip.machine.products import gather, halves_of, passes_of, product_of, tile_at
from anytpu.chip.machine.systolic import SystolicArray


def witness(image: Image, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run an image as `run` does, with products made by a `SystolicArray` of the chip's size."""
    check(image)
    size = image.design.array
    array = SystolicArray(size, size)

    def multiply(memories: ChipMemories, step: Step) -> None:
        product = product_of(step)
        target = memories.accumulators[product.accumulator : product.accumulator + product.rows]
        if not product.accumulate:
            target[...] = 0
        for tile, numbers, high in operands_of(memories, step, size):
            sums = array.multiply(tile, numbers)
            target += sums * np.int32(256) if high else sums

    return execute(image, decode(image), values, multiply)


def operands_of(memories: ChipMemories, step: Step, size: int) -> Iterator[tuple[np.ndarray, np.ndarray, bool]]:
    """Yield the operands of an array, pass by pass.

    Returns:
        The tile, int8 `(size, size)`, and the numbers sent into it, int32 `(rows, size)`. Then whether these are the
        high bytes of 16-bit numbers, whose sums count 256 times.
    """
    product = product_of(step)
    for one in passes_of(step, size):
        for high in halves_of(product):
            numbers = np.zeros((product.rows, size), np.int32)
            gather(memories.buffer, step, [one], (0, product.rows), numbers, high)
            yield tile_at(memories.weights, one.tile, size), numbers, high
