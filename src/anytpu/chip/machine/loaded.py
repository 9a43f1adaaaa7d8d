"""`run`: an image on one batch; what was prepared for the image is kept for the next run.

Idea: an image is checked and decoded once, and its weights are converted once; a run then only moves and computes
numbers. A program's images for other batches have the same weights, so they share these and the memories of the chip.

Rule: kept state references neither image nor weights, so that it is freed with them. Runs may be concurrent: no other
run uses the memories of a run until it has ended. Other state that is kept only grows.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping

import numpy as np

from anytpu.chip.checking import check
from anytpu.chip.image.image import Image
from anytpu.chip.machine.decoding import Step, decode
from anytpu.chip.machine.execution import execute
from anytpu.chip.machine.memories import ChipMemories
from anytpu.chip.machine.products import Multiplier
from anytpu.program.remembered import Remembered


class _Kept:
    """State that the runs of all images with the same weights share.

    Attributes:
        multiplier: carries out products, and keeps their weights as float32.
        spare: by the sizes of the chip, memories that no run uses.
    """

    def __init__(self):
        self.multiplier = Multiplier()
        self.spare: collections.defaultdict[tuple[int, ...], list[ChipMemories]] = collections.defaultdict(list)


_STEPS: Remembered[tuple[Step, ...]] = Remembered()
_KEPT: Remembered[_Kept] = Remembered()


def run(image: Image, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run an image on one batch, exactly.

    Args:
        image: the image; its prepared state is kept for the next run as long as the image lives.
        values: by name: integers `(batch, height, width, channels)` of each input of the chip. Also the user's own
            arrays that steps of the host take, of the same axes.

    Returns:
        By name: the inputs, and the integers of each output of the chip. Also the integers of the chip's tensors that
        the host's steps took, and the results of these steps. A result that is not a tensor of the chip is in floats.

    Raises:
        ChipError: an input is missing, or of the wrong shape or dtype; the image cannot run.
        HazardError: the image's results would depend on timing.
    """
    check(image)
    steps = _STEPS.get(image) or _STEPS.keep(image, decode(image))
    kept = _KEPT.get(image.weights) or _KEPT.keep(image.weights, _Kept())
    spare = kept.spare[image.design.compiled_for]
    memories = ChipMemories.of(image, spare.pop() if spare else None)
    made = execute(image, steps, values, kept.multiplier.multiply, memories)
    spare.append(memories.emptied())
    return made
