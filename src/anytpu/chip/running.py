"""`Runner`: run a program on any number of rows, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anytpu.chip import ports
from anytpu.chip.graph.nodes import HostStep
from anytpu.chip.images import ImageCache
from anytpu.chip.interface import interface_of
from anytpu.errors import HostStepError


class Runner:
    """Runs the images of one program.

    Attributes:
        inputs, outputs: the inputs and outputs of the program, in order.
    """

    def __init__(self, images: ImageCache) -> None:
        self._images = images
        self._interface = interface_of(images.own, images.network)
        self.inputs, self.outputs = self._interface.inputs, self._interface.outputs

    def run_real(self, x: Any) -> list[np.ndarray]:
        """Return the outputs as real numbers, `(rows, ...)` in the user's shapes."""
        tensors = self._run(x, [port.tensor for port in self.outputs])
        return [
            ports.array_of(port, tensors[port.tensor], self._interface.quantizations).astype(port.dtype, copy=False)
            for port in self.outputs
        ]

    def run_integers(self, x: Any) -> list[np.ndarray]:
        """Return each output's integers; for an output computed on the host, the chip tensors it is computed from."""
        shapes: list[tuple[str, tuple[int, ...] | None]] = []
        for port in self.outputs:
            if port.tensor in self._interface.quantizations:
                shapes.append((port.tensor, port.shape))
            else:  # computed on the host: return each of its chip tensors once, in that tensor's shape
                shapes += [(tensor, None) for tensor in self._held(port.tensor) if (tensor, None) not in shapes]
        tensors = self._run(x, list(dict.fromkeys(tensor for tensor, _ in shapes)))
        return [
            tensors[tensor] if shape is None else tensors[tensor].reshape(len(tensors[tensor]), *shape)
            for tensor, shape in shapes
        ]

    def _run(self, x: Any, tensors: Sequence[str]) -> dict[str, np.ndarray]:
        """Run all rows of x, and return the given tensors by name, `(rows, height, width, channels)`."""
        from anytpu.chip import machine

        own = self._images.own
        arrays = ports.arrays_of(own.name, self.inputs, x)
        rows = ports.check_arrays(own.name, self.inputs, arrays)
        if not rows:
            return {name: self._nothing(name) for name in tensors}
        # A few rows use the image for the next power of two, so that there are few images; the batch is padded.
        image = self._images.image(min(_power_of_two(rows), own.batch)) if self._images.network else own
        # Before the arrays of a batch are allocated, of which each row has an index of 8 bytes too.
        inputs_bytes = [math.prod(port.shape) * np.dtype(port.dtype).itemsize for port in self.inputs]
        machine.check_room(image, 8 + sum(inputs_bytes))
        made = []
        for index, inputs in enumerate(self._batches(arrays, image.batch)):
            try:
                made.append(machine.run(image, inputs))
            except HostStepError as error:
                raise HostStepError(error.made, error.row + index * image.batch, error.reason) from None
        return {name: np.concatenate([result[name] for result in made])[:rows] for name in tensors}

    def _nothing(self, tensor: str) -> np.ndarray:
        """Return a tensor with 0 rows."""
        quantization = self._interface.quantizations.get(tensor)
        return np.zeros(
            (0, *self._interface.shapes[tensor]), np.float32 if quantization is None else quantization.dtype
        )

    def _batches(self, arrays: list[np.ndarray], batch: int) -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, len(arrays[0]), batch):
            # The last batch is padded with its last row, for which a host step gives no new result or error.
            rows = np.minimum(np.arange(start, start + batch), len(arrays[0]) - 1)
            yield {
                port.tensor: ports.tensor_of(port, array[rows], self._interface.shapes, self._interface.quantizations)
                for port, array in zip(self.inputs, arrays, strict=True)
            }

    def _held(self, tensor: str) -> list[str]:
        """Return the tensor if it is on the chip, else the chip tensors from which the host computes it."""
        if tensor in self._interface.quantizations:
            return [tensor]
        maker = next((step for step in self._interface.nodes if step.output == tensor), None)
        inputs = maker.inputs if isinstance(maker, HostStep) else ()
        return [source for name in inputs for source in self._held(name)]


def _power_of_two(rows: int) -> int:
    return 1 << (rows - 1).bit_length()
