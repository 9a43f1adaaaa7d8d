"""`run`: an image on one batch; the prepared state of the image is kept for the next run.

Idea: an image is checked and decoded once, and its weights are converted once; a run then only moves and computes
numbers.

Rule: the prepared state does not reference its image, so that it is freed with it. Runs of one image may be concurrent:
no other run uses the memories of a run until it has ended. Other state that is kept for the image only grows.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anytpu.chip.checking import check
from anytpu.chip.image.image import Image
from anytpu.chip.machine.decoding import decode
from anytpu.chip.machine.execution import execute
from anytpu.chip.machine.memories import ChipMemories
from anytpu.chip.machine.products import Multiplier
from anytpu.program.remembered import Remembered


class PreparedImage:
    """The prepared state of an image, for its runs.

    Attributes:
        steps: the steps of a run, in order.
    """

    def __init__(self, image: Image):
        """Check and decode an image.

        Raises:
            ChipError: the image cannot run; see `check`.
            HazardError: the image reads memory that nothing wrote, pops an empty FIFO, or lacks a Sync; see `check`.
        """
        check(image)
        self.steps = decode(image)
        self._multiplier = Multiplier(image)
        self._spare: list[ChipMemories] = []

    def run(self, image: Image, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the image that this state was prepared from; see `run`."""
        memories = self._spare.pop() if self._spare else ChipMemories.of(image)
        made = execute(image, self.steps, values, self._multiplier.multiply, memories)
        self._spare.append(memories)
        return made


_PREPARED: Remembered[PreparedImage] = Remembered()


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
    prepared = _PREPARED.get(image) or _PREPARED.keep(image, PreparedImage(image))
    return prepared.run(image, values)
