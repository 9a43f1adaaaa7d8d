"""`Runner`: any number of rows of the user's arrays through a program, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anytpu.chip import ports
from anytpu.chip.image import Binding
from anytpu.chip.images import Images
from anytpu.chip.network.nodes import Port, Shape
from anytpu.chip.quantized.nodes import QHostStep, Quantization


class Runner:
    """Runs the images of one program.

    Attributes:
        inputs, outputs: what goes in and comes out, in order.
    """

    def __init__(self, images: Images) -> None:
        network, own = images.network, images.own
        bound = (*own.inputs, *own.outputs)
        self.inputs = network.inputs if network else _ports(own.inputs)
        self.outputs = network.outputs if network else _ports(own.outputs)
        self._images = images
        self._nodes = network.nodes if network else ()
        self._shapes: Mapping[str, Shape] = network.shapes if network else {one.tensor: one.shape for one in bound}
        self._quantizations: Mapping[str, Quantization] = (
            network.quantizations if network else {one.tensor: one.quantization for one in bound}
        )

    def real(self, x: Any) -> list[np.ndarray]:
        """Return the outputs as real numbers, `(rows, ...)` in the user's shapes."""
        found = self._run(x, [port.tensor for port in self.outputs])
        return [
            ports.array_of(port, found[port.tensor], self._quantizations).astype(port.dtype, copy=False)
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
                port.tensor: ports.tensor_of(port, one, self._shapes, self._quantizations)
                for port, one in zip(self.inputs, full, strict=True)
            }

    def _held(self, tensor: str) -> list[str]:
        """Return the tensor if the chip holds it, else those that the host makes it of."""
        if tensor in self._quantizations:
            return [tensor]
        maker = next((one for one in self._nodes if one.output == tensor), None)
        inputs = maker.inputs if isinstance(maker, QHostStep) else ()
        return [one for name in inputs for one in self._held(name)]


def _power_of_two(rows: int) -> int:
    return 1 << max(0, rows - 1).bit_length()


def _ports(bindings: Sequence[Binding]) -> tuple[Port, ...]:
    """Return the ports of a program without a network: a vector's shape is that of its channels, and so on."""
    return tuple(Port(one.tensor, one.shape[_leading_ones(one.shape[:2]) :]) for one in bindings)


def _leading_ones(shape: tuple[int, ...]) -> int:
    return next((number for number, size in enumerate(shape) if size != 1), len(shape))
