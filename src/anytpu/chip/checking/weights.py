"""Whether the Weight Memory holds the weights, and whether the multipliers of a parameter block are finite.

Idea: any bytes are a valid tile, bias or table. But a float32 multiplier may be NaN or infinite. A product with NaN, or
0 times infinity, is NaN, which no integer represents.
"""

from __future__ import annotations

import numpy as np

from anytpu.chip.image.image import Image
from anytpu.chip.isa.accesses import blocks_of
from anytpu.chip.isa.design import BLOCK_BYTES, Design
from anytpu.chip.isa.instructions import Instruction, ReadWeights


def fault_in_size(image: Image) -> str | None:
    """Return the fault of weights that exceed the Weight Memory, as a sentence, or None."""
    weights_bytes, memory_bytes = len(image.weights), image.design.weight_memory_bytes
    if weights_bytes <= memory_bytes:
        return None
    return f"The weights of {image.name!r} take {weights_bytes:,} bytes, and the Weight Memory has {memory_bytes:,}."


def fault_in_multipliers(instruction: Instruction, weights: np.ndarray, design: Design) -> str | None:
    """Return the fault of the multipliers that an instruction reads, as the rest of a sentence, or None.

    Args:
        instruction: the instruction; its blocks are within the Weight Memory.
        weights: the filled part of the Weight Memory, uint8; bytes beyond it are 0.
        design: the chip.
    """
    if not isinstance(instruction, ReadWeights) or instruction.kind != "parameters":
        return None
    blocks = blocks_of(instruction, design)
    stop = min(instruction.address + instruction.count * blocks, -(-len(weights) // BLOCK_BYTES))
    for block in range(instruction.address, stop, blocks):
        first = block * BLOCK_BYTES + 4 * design.array
        content = weights[first : first + 4 * design.array]
        # A number at the end of `weights` that lacks bytes has 0 as its highest byte, so it is finite.
        finite = np.isfinite(content[: len(content) // 4 * 4].view("<f4"))
        if not finite.all():
            lane = int(np.argmin(finite))
            value = float(content[4 * lane : 4 * lane + 4].view("<f4")[0])
            return (
                f"reads {value} as the multiplier of lane {lane}, in block {block} of the Weight Memory. Multipliers "
                "must be finite numbers."
            )
    return None
