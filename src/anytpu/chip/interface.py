"""`interface_of`: the inputs, outputs, shapes and quantizations of a program, as a network.

Idea: a compiled program has a network with the user's shapes and names. A program that was assembled from text, or read
from a file without a network, has only its image. Its interface then follows from the image's bindings and from the
inputs and outputs of its host steps.
"""

from __future__ import annotations

from collections.abc import Iterator

from anytpu.chip.graph.nodes import Network, Port
from anytpu.chip.graph.shapes import canonical_shape
from anytpu.chip.image.image import Binding, Image


def interface_of(image: Image, network: Network | None) -> Network:
    """Return the network of a program; if it has only an image, the part of a network that its image describes.

    That part has the inputs and outputs, their shapes, each chip tensor that the host reads or writes, and the host's
    steps.
    """
    if network is not None:
        return network
    inputs, outputs = (
        (*_chip_ports(image.inputs), *_host_inputs(image)),
        (*_chip_ports(image.outputs), *_host_outputs(image)),
    )
    return Network(
        image.name,
        inputs=inputs,
        outputs=outputs,
        shapes={
            **{port.tensor: canonical_shape(port.shape) for port in (*inputs, *outputs)},
            **{binding.tensor: binding.shape for binding in _bindings(image)},
        },
        quantizations={binding.tensor: binding.quantization for binding in _bindings(image)},
        nodes=tuple(service.step for service in image.services),
    )


def _bindings(image: Image) -> Iterator[Binding]:
    yield from (*image.inputs, *image.outputs)
    for service in image.services:
        yield from (binding for binding in (*service.inputs, service.output) if binding is not None)


def _chip_ports(bindings: tuple[Binding, ...]) -> Iterator[Port]:
    """Yield the port of each bound chip tensor; its shape omits leading axes of size 1 before the channels."""
    for binding in bindings:
        leading = next((index for index, size in enumerate(binding.shape[:2]) if size != 1), 2)
        yield Port(binding.tensor, binding.shape[leading:])


def _host_inputs(image: Image) -> Iterator[Port]:
    """Yield the inputs of host steps that are the user's own arrays."""
    known = {service.step.output for service in image.services}
    for service in image.services:
        arguments = service.step.steps.arguments
        for name, binding, argument in zip(service.step.inputs, service.inputs, arguments, strict=True):
            if binding is None and name not in known:
                known.add(name)
                yield Port(name, argument.example_shape, argument.dtype)


def _host_outputs(image: Image) -> Iterator[Port]:
    """Yield the outputs of host steps that go to the user only."""
    taken = {name for service in image.services for name in service.step.inputs}
    for service in image.services:
        if service.output is None and service.step.output not in taken:
            result = service.step.steps.result
            yield Port(service.step.output, result.example_shape, result.dtype)
