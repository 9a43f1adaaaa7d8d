"""`Face`: what a program takes and gives, as its user sees it, of a network or of an image alone.

Idea: a compiled program has a network, which knows the user's shapes and names. One that was assembled from text, or
read from a file without a network, has only its image: its bindings, and what the steps of the host take and make.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from anytpu.chip.image import Binding, Image
from anytpu.chip.network.nodes import Node, Port, Shape
from anytpu.chip.network.shapes import canonical_shape
from anytpu.chip.quantized.nodes import Quantization, QuantizedNetwork


@dataclasses.dataclass(frozen=True)
class Face:
    """What goes into a program and comes out, and what it is made of.

    Attributes:
        inputs, outputs: in order.
        shapes: of each tensor that goes in or comes out, or that the host sees, `(height, width, channels)`.
        quantizations: of each tensor that the chip holds and the host sees.
        steps: what the host does.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    shapes: Mapping[str, Shape]
    quantizations: Mapping[str, Quantization]
    steps: tuple[Node, ...]


def face_of(image: Image, network: QuantizedNetwork | None) -> Face:
    """Return the face of a program."""
    if network is not None:
        return Face(network.inputs, network.outputs, network.shapes, network.quantizations, network.nodes)
    inputs, outputs = (*_bound(image.inputs), *_taken(image)), (*_bound(image.outputs), *_made(image))
    return Face(
        inputs=inputs,
        outputs=outputs,
        shapes={
            **{port.tensor: canonical_shape(port.shape) for port in (*inputs, *outputs)},
            **{one.tensor: one.shape for one in _bindings(image)},
        },
        quantizations={one.tensor: one.quantization for one in _bindings(image)},
        steps=tuple(service.step for service in image.services),
    )


def _bindings(image: Image) -> Iterator[Binding]:
    yield from (*image.inputs, *image.outputs)
    for service in image.services:
        yield from (one for one in (*service.inputs, service.output) if one is not None)


def _bound(bindings: tuple[Binding, ...]) -> Iterator[Port]:
    """The ports of tensors of the chip: a vector's shape is that of its channels, and so on."""
    for one in bindings:
        ones = next((number for number, size in enumerate(one.shape[:2]) if size != 1), 2)
        yield Port(one.tensor, one.shape[ones:])


def _taken(image: Image) -> Iterator[Port]:
    """The user's own arrays that steps of the host take."""
    known = {service.step.output for service in image.services}
    for service in image.services:
        arguments = service.step.step.steps.arguments
        for name, binding, argument in zip(service.step.inputs, service.inputs, arguments, strict=True):
            if binding is None and name not in known:
                known.add(name)
                yield Port(name, argument.example_shape, argument.dtype)


def _made(image: Image) -> Iterator[Port]:
    """What steps of the host make for the user alone."""
    taken = {name for service in image.services for name in service.step.inputs}
    for service in image.services:
        if service.output is None and service.step.output not in taken:
            result = service.step.step.steps.result
            yield Port(service.step.output, result.example_shape, result.dtype)
