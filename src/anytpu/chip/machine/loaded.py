"""`run`: an image on one batch; what was prepared for the image is kept for the next run.

Idea: an image is checked, decoded and fused once, and its weights are made ready once; a run then only moves and makes
numbers.

Rule: what was made ready does not hold its image, so that it is freed with it. Runs of one image may go on at the same
time, each with memories that no other uses until it has ended; what else is kept for the image is only added to.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anytpu.chip.checking import check
from anytpu.chip.image import Image
from anytpu.chip.machine.decoding import decode
from anytpu.chip.machine.execution import execute
from anytpu.chip.machine.fusing import LayerStep, fuse
from anytpu.chip.machine.layers import Layers
from anytpu.chip.machine.memories import Memories
from anytpu.chip.machine.products import multiply
from anytpu.chip.machine.steps import ProductStep
from anytpu.program.remembered import Remembered


class Prepared:
    """What runs of an image need beside the image.

    Attributes:
        steps: what a run does, in order.
    """

    def __init__(self, image: Image):
        """Check, decode and fuse an image.

        Raises:
            HazardError: the image reads what nothing wrote, pops an empty FIFO, or leaves a memory.
        """
        check(image)
        self.steps = fuse(decode(image), image.design)
        self._layers = Layers(image)
        self._spare: list[Memories] = []

    def run(self, image: Image, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the image that this was made of; see `run`."""
        memories = self._spare.pop() if self._spare else Memories.of(image)
        made = execute(image, self.steps, values, {ProductStep: multiply, LayerStep: self._layers.do}, memories)
        self._spare.append(memories)
        return made


_PREPARED: Remembered[Prepared] = Remembered()


def run(image: Image, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run an image on one batch, exactly.

    Args:
        image: what to run; what was prepared for it is kept for the next run as long as the image lives.
        values: by name: integers `(batch, height, width, channels)` of each input of the chip, and the user's own
            arrays that steps of the host take, of the same axes.

    Returns:
        By name: what went in, the integers of each output of the chip and of what the steps of the host took, and what
        they made (floats where it is no tensor of the chip).

    Raises:
        ChipError: an input is missing, or of the wrong shape or dtype; the image cannot run.
        HazardError: the image's results would depend on luck.
    """
    prepared = _PREPARED.get(image) or _PREPARED.keep(image, Prepared(image))
    return prepared.run(image, values)
