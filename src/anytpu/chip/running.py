"""`Runner`: any number of rows of the user's arrays through a program, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anytpu.chip import ports
from anytpu.chip.faces import face_of
from anytpu.chip.images import Images
from anytpu.chip.quantized.nodes import QHostStep


class Runner:
    """Runs the images of one program.

    Attributes:
        inputs, outputs: what goes in and comes out, in order.
    """

    def __init__(self, images: Images) -> None:
        self._images = images
        self._face = face_of(images.own, images.network)
        self.inputs, self.outputs = self._face.inputs, self._face.outputs

    def real(self, x: Any) -> list[np.ndarray]:
        """Return the outputs as real numbers, `(rows, ...)` in the user's shapes."""
        found = self._run(x, [port.tensor for port in self.outputs])
        return [
            ports.array_of(port, found[port.tensor], self._face.quantizations).astype(port.dtype, copy=False)
            for port in self.outputs
        ]

    def whole(self, x: Any) -> list[np.ndarray]:
        """Return the integers of each output; of one that the host makes, those that it makes it of."""
        tensors = list(dict.fromkeys(one for port in self.outputs for one in self._held(port.tensor)))
        found = self._run(x, tensors)
        shapes = {port.tensor: port.shape for port in self.outputs}
        return [found[one].reshape(len(found[one]), *shapes.get(one, found[one].shape[1:])) for one in tensors]

    def _run(self, x: Any, tensors: Sequence[str]) -> dict[str, np.ndarray]:
        """Return some tensors of a run over all rows of x."""
        from anytpu.chip import machine

        own = self._images.own
        arrays = ports.arrays_of(own.name, self.inputs, x)
        rows = ports.check_arrays(own.name, self.inputs, arrays)
        # Few rows get instructions for the next power of two, so that there are few images; the rest is filled up.
        image = self._images.image(min(_power_of_two(rows), own.batch)) if self._images.network else own
        made = [machine.run(image, one) for one in self._batches(arrays, image.batch)]
        return {name: np.concatenate([one[name] for one in made])[:rows] for name in tensors}

    def _batches(self, arrays: list[np.ndarray], batch: int) -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, max(1, len(arrays[0])), batch):
            taken = [array[start : start + batch] for array in arrays]
            full = [np.concatenate([one, np.zeros((batch - len(one), *one.shape[1:]), one.dtype)]) for one in taken]
            yield {
                port.tensor: ports.tensor_of(port, one, self._face.shapes, self._face.quantizations)
                for port, one in zip(self.inputs, full, strict=True)
            }

    def _held(self, tensor: str) -> list[str]:
        """Return the tensor if the chip holds it, else those that the host makes it of."""
        if tensor in self._face.quantizations:
            return [tensor]
        maker = next((one for one in self._face.steps if one.output == tensor), None)
        inputs = maker.inputs if isinstance(maker, QHostStep) else ()
        return [one for name in inputs for one in self._held(name)]


def _power_of_two(rows: int) -> int:
    return 1 << max(0, rows - 1).bit_length()
