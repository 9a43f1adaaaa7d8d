"""The witness: an image run with its products made by the literal systolic array, pass by pass and cycle by cycle.

It shares decoding and the other units with the fast machine, but not the computation of products. It is slow (some ten
thousand cycles a second of an array of 256 by 256).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anytpu.chip.checking import check
from anytpu.chip.image.image import Image
from anytpu.chip.machine import SystolicArray
from anytpu.chip.machine.decoding import Step, decode
from anytpu.chip.machine.execution import execute
from anytpu.chip.machine.memories import ChipMemories
from anytpu.chip.machine.products import operands_of, product_of


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
