"""`fault_in_bindings`: whether the inputs and outputs of an image go together.

Rule: what the host puts in is still there when the program starts, and a name stands for one tensor.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from anytpu.chip.image import Binding, Image
from anytpu.chip.isa.accesses import Memory, range_text


def fault_in_bindings(image: Image) -> str | None:
    """Return what is wrong, as a sentence, or None."""
    return (
        _fault_in_names("inputs", image.inputs)
        or _fault_in_names("outputs", image.outputs)
        or _fault_in_meanings(image)
        or _fault_in_places(image)
    )


def _fault_in_names(what: str, bindings: Sequence[Binding]) -> str | None:
    names = [binding.tensor for binding in bindings]
    for name in names:
        if names.count(name) > 1:
            return f"Two {what} have the name {name!r}. Give each a name of its own."
    return None


def _fault_in_meanings(image: Image) -> str | None:
    outputs = {binding.tensor: binding for binding in image.outputs}
    for binding in image.inputs:
        other = outputs.get(binding.tensor, binding)
        if (binding.shape, binding.quantization) != (other.shape, other.quantization):
            return f"An input and an output have the name {binding.tensor!r}, and another shape or other numbers."
    return None


def _fault_in_places(image: Image) -> str | None:
    ordered = sorted(image.inputs, key=lambda binding: binding.host_address)
    for binding, other in itertools.pairwise(ordered):
        stop = min(_stop(binding, image), _stop(other, image))
        if other.host_address < stop:
            place = range_text(Memory.HOST, other.host_address, stop)
            return f"The inputs {binding.tensor!r} and {other.tensor!r} both lie at {place}. Move one of them."
    return None


def _stop(binding: Binding, image: Image) -> int:
    return binding.host_address + binding.total_bytes(image.batch)
