"""`fault_in_bindings`: whether the inputs and outputs of an image are consistent.

Rule: inputs do not overlap in the host's buffer, and each name identifies one tensor, also in the host's steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from anytpu.chip.image.image import Binding, Image
from anytpu.chip.isa.accesses import Memory, range_text


def fault_in_bindings(image: Image) -> str | None:
    """Return the fault of the inputs and outputs, as a sentence, or None."""
    return (
        _repeated_name("inputs", image.inputs)
        or _repeated_name("outputs", image.outputs)
        or _mismatch(image)
        or _overlap_of_inputs(image)
    )


def _repeated_name(what: str, bindings: Sequence[Binding]) -> str | None:
    names = [binding.tensor for binding in bindings]
    for name in names:
        if names.count(name) > 1:
            return f"Two {what} have the name {name!r}. Give each a name of its own."
    return None


def _mismatch(image: Image) -> str | None:
    known = {binding.tensor: binding for binding in image.inputs}
    for number, service in enumerate(image.services):
        for binding in (*service.inputs, service.output):
            if binding is not None and not _is_same(binding, known.setdefault(binding.tensor, binding)):
                return f"Step {number} of the host takes or makes {binding.tensor!r} as another shape or other numbers."
    for binding in image.outputs:
        if not _is_same(binding, known.get(binding.tensor, binding)):
            return f"An input and an output have the name {binding.tensor!r}, and another shape or other numbers."
    return None


def _is_same(binding: Binding, other: Binding) -> bool:
    return (binding.shape, binding.quantization) == (other.shape, other.quantization)


def _overlap_of_inputs(image: Image) -> str | None:
    ordered = sorted(image.inputs, key=lambda binding: binding.host_address)
    for binding, other in itertools.pairwise(ordered):
        stop = min(_stop(binding, image), _stop(other, image))
        if other.host_address < stop:
            place = range_text(Memory.HOST, other.host_address, stop)
            return f"The inputs {binding.tensor!r} and {other.tensor!r} overlap at {place}. Move one of them."
    return None


def _stop(binding: Binding, image: Image) -> int:
    return binding.host_address + binding.total_bytes(image.batch)
