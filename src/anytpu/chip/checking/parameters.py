"""`fault_in_multipliers`: whether what is read as parameters can be multiplied with.

Idea: whatever bytes stand in the Weight Memory are tiles, biases and tables. Only of multipliers some are no numbers,
and 0 times infinity is none either: an Activate could make nothing of them.
"""

from __future__ import annotations

import numpy as np

from anytpu.chip.design import BLOCK_BYTES, Design
from anytpu.chip.isa.accesses import blocks_of
from anytpu.chip.isa.instructions import Instruction, ReadWeights


def fault_in_multipliers(instruction: Instruction, weights: np.ndarray, design: Design) -> str | None:
    """Return what is wrong with the multipliers that an instruction reads, as the rest of a sentence, or None.

    Args:
        instruction: what is issued; its blocks are there.
        weights: uint8, the Weight Memory as far as it is filled; what is beyond is 0.
        design: the chip.
    """
    if not isinstance(instruction, ReadWeights) or instruction.kind != "parameters":
        return None
    blocks = blocks_of(instruction, design)
    for block in range(instruction.address, instruction.address + instruction.count * blocks, blocks):
        first = block * BLOCK_BYTES + 4 * design.array
        content = weights[first : first + 4 * design.array]
        # A number that is cut short has 0 for its last byte, and so is finite.
        finite = np.isfinite(content[: len(content) // 4 * 4].view("<f4"))
        if not finite.all():
            lane = int(np.argmin(finite))
            value = float(content[4 * lane : 4 * lane + 4].view("<f4")[0])
            return (
                f"reads {value} as the multiplier of lane {lane}, in block {block} of the Weight Memory. Multipliers "
                "must be finite numbers."
            )
    return None
