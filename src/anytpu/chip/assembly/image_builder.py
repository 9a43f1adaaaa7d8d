"""`ImageBuilder`: an image under construction, while its text is parsed."""

from __future__ import annotations

import base64
import binascii
import dataclasses
from typing import Any

import numpy as np

from anytpu.chip.assembly.line import SourceLine
from anytpu.chip.image.image import Binding, Image, Resident, Service, Tag
from anytpu.chip.image.serialization import RecordDecoder
from anytpu.chip.isa.design import TPU_V1, Design
from anytpu.chip.isa.instructions import Instruction
from anytpu.errors import ChipError
from anytpu.files import json_text


@dataclasses.dataclass
class ImageBuilder:
    """An image under construction, from the lines read so far.

    Attributes:
        text_bytes: size of the text.
        name, batch, host_bytes, tags, residents, instructions: as in `Image`.
        design: values of the `Design` fields that the text sets, by name.
        inputs, outputs: bindings, each with whether the text gives its lanes.
        weights: bytes of the Weight Memory.
        zeros_bytes: bytes of the weights that no line gives, all 0.
        services, steps: descriptions of the host's steps, each with its line.
        arrays: arrays that the descriptions refer to.
    """

    text_bytes: int
    name: str
    batch: int = 1
    host_bytes: int = 0
    design: dict[str, Any] = dataclasses.field(default_factory=dict)
    inputs: list[tuple[Binding, bool]] = dataclasses.field(default_factory=list)
    outputs: list[tuple[Binding, bool]] = dataclasses.field(default_factory=list)
    tags: list[Tag] = dataclasses.field(default_factory=list)
    residents: list[Resident] = dataclasses.field(default_factory=list)
    weights: bytearray = dataclasses.field(default_factory=bytearray)
    zeros_bytes: int = 0
    services: list[tuple[SourceLine, Any]] = dataclasses.field(default_factory=list)
    steps: tuple[SourceLine, Any] | None = None
    arrays: list[np.ndarray] = dataclasses.field(default_factory=list)
    instructions: list[Instruction] = dataclasses.field(default_factory=list)

    def image(self) -> Image:
        """Return the image.

        Raises:
            AssemblyError: the description of the host's steps cannot be read.
        """
        design = dataclasses.replace(TPU_V1, **self.design)
        return Image(
            name=self.name,
            instructions=tuple(self.instructions),
            weights=np.frombuffer(bytes(self.weights), np.uint8),
            batch=self.batch,
            host_bytes=self.host_bytes,
            inputs=tuple(binding if has_lanes else _in_planes(binding, design) for binding, has_lanes in self.inputs),
            outputs=tuple(binding if has_lanes else _in_planes(binding, design) for binding, has_lanes in self.outputs),
            services=tuple(self._services()),
            tags=tuple(self.tags),
            residents=tuple(self.residents),
            design=design,
        )

    def _services(self) -> list[Any]:
        if not self.services:
            return []
        line, steps = self.steps or (self.services[0][0], [])
        try:
            if not isinstance(steps, list):  # one object, in earlier releases
                raise ChipError("The steps are in another form: compile the model again, and disassemble it.")
            records = RecordDecoder(self.arrays, steps, self.text_bytes, self.batch)
            return [records.record(Service, described) for _, described in self.services]
        except ChipError as error:
            raise line.error(1, f"what the host does cannot be read. {error}") from error


def read_json(line: SourceLine, column: int, text: str) -> Any:
    """Parse a text in JSON.

    Raises:
        AssemblyError: the text is not JSON.
    """
    try:
        return json_text.read_json(text)
    except ValueError as error:
        raise line.error(column, f"the description is no JSON: {error}.") from error


def read_base64(line: SourceLine, column: int, text: str) -> bytes:
    """Decode a text in base64.

    Raises:
        AssemblyError: the text is not in base64.
    """
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise line.error(column, "the text is not in base64.") from error


def _in_planes(binding: Binding, design: Design) -> Binding:
    whole, rest = divmod(binding.shape[2], design.array)
    return dataclasses.replace(binding, lanes=(design.array,) * whole + ((rest,) if rest else ()))
