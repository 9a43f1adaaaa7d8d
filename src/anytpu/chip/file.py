"""`.tpu` files: a program for the chip, with the quantized network that it was compiled from.

Idea: a file has five parts (`file_parts.py`):

- "header": JSON with names, bindings, host services and the chip.
- "code": the instructions, as `isa` encodes them.
- "weights": the bytes of the Weight Memory.
- "network": the quantized network as JSON, or null.
- "arrays": the arrays of the network and of the host steps (`serialization.py`).

Rule: a file contains no Python code, so reading it executes nothing. A file is written under a temporary name and then
renamed, so that an interrupted write keeps the old file.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from anytpu.chip.file_parts import PARTS, SAVE_AGAIN, Packed, join_parts, split_parts
from anytpu.chip.graph.nodes import HostStep, Network
from anytpu.chip.image.image import Image, Resident, Tag
from anytpu.chip.image.serialization import (
    RecordDecoder,
    RecordEncoder,
    binding,
    fault_in_size,
    join_arrays,
    size_bytes,
    split_arrays,
)
from anytpu.chip.images import check_spill
from anytpu.chip.isa import Instruction, decode, encode
from anytpu.chip.isa.design import Design
from anytpu.chip.quantized.checking import check_network
from anytpu.errors import ChipError, ChipFileError
from anytpu.files.json_text import MAX_JSON_BYTES, check_json, read_json
from anytpu.files.opening import read_file
from anytpu.files.replacing import replaced

SUFFIX = ".tpu"
"""Suffix of a program file's name."""

_HEADER, _CODE, _WEIGHTS, _NETWORK, _ARRAYS = PARTS

MAX_PART_BYTES = {_HEADER: MAX_JSON_BYTES, _CODE: 16 * 2**20, _NETWORK: MAX_JSON_BYTES}
"""Maximum bytes of these parts: enough for 2,500 steps of an LSTM. The header has the sizes of the other parts."""


def write(path: str | Path, image: Image, network: Network | None = None, spill: bool = True) -> Path:
    """Write a program to a file.

    Args:
        path: path of the file; its name ends in ".tpu". An existing file is replaced atomically.
        image: the program.
        network: the network that it was compiled from, so that a reader can compile it for another batch. None: omit
            it.
        spill: whether later compilations may move tensors that exceed the Unified Buffer to the host.

    Returns:
        The path.

    Raises:
        ChipFileError: the name has another suffix, or the file cannot be written. A part exceeds `MAX_PART_BYTES`, or a
            host step takes too much memory (`fault_in_size`).
        ChipError: an instruction cannot be encoded.

    Example:
        >>> write("model.tpu", image, network)  # doctest: +SKIP
    """
    place = Path(path)
    if place.suffix != SUFFIX:
        raise ChipFileError(f"The name of a program for the chip must end in {SUFFIX!r}, unlike {str(path)!r}.")
    content = to_bytes(image, network, spill)
    try:
        with replaced(place) as unfinished:
            unfinished.write_bytes(content)
    except OSError as error:
        raise ChipFileError(f"The file {str(path)!r} cannot be written: {error.strerror or error}.") from error
    return place


def read(path: str | Path) -> tuple[Image, Network | None, bool]:
    """Read a program from a file.

    Returns:
        The program, its quantized network (None if the file has none), and whether its compilation may spill.

    Raises:
        ChipFileError: the file does not exist, is not a program for the chip, is truncated or altered, or has a newer
            format.

    Example:
        >>> image, network, spill = read("model.tpu")  # doctest: +SKIP
    """
    try:
        content = read_file(Path(path))
    except OSError as error:
        raise ChipFileError(f"The file {str(path)!r} cannot be read: {error.strerror or error}.") from error
    return from_bytes(content, str(path))


def to_bytes(image: Image, network: Network | None = None, spill: bool = True) -> bytes:
    """Return the content of a file.

    Raises:
        ChipFileError: a part exceeds `MAX_PART_BYTES`, or a host step takes too much memory (`fault_in_size`).
        ChipError: an instruction cannot be encoded.
    """
    describing = RecordEncoder()
    services = [describing.service(service) for service in image.services]
    described = None if network is None else describing.network(network)
    steps = describing.steps()
    listed, arrays = join_arrays(describing.arrays)
    header = {
        "name": image.name,
        "batch": image.batch,
        "host_bytes": image.host_bytes,
        "inputs": [dataclasses.asdict(bound) for bound in image.inputs],
        "outputs": [dataclasses.asdict(bound) for bound in image.outputs],
        "services": services,
        "tags": [dataclasses.asdict(tag) for tag in image.tags],
        "residents": [dataclasses.asdict(resident) for resident in image.residents],
        "design": dataclasses.asdict(image.design),
        "settings": {"spill": spill},
        "steps": steps,
        "arrays": listed,
        "weights_bytes": len(image.weights),
    }
    weights = np.ascontiguousarray(image.weights, np.uint8).tobytes()
    parts = (_json(header), encode(image.instructions), weights, _json(described), arrays)
    for name, part in zip(PARTS, parts, strict=True):
        maximum = MAX_PART_BYTES.get(name, len(part))
        if len(part) > maximum:
            raise ChipFileError(
                f"The program cannot be written: part {name!r} of its file would have {len(part):,} bytes, and "
                f"{maximum:,} is the most that it can have."
            )
        if name in (_HEADER, _NETWORK):
            try:
                check_json(part)
            except ValueError as error:
                raise ChipFileError(f"The program cannot be written: part {name!r} of its file: {error}.") from error
    content = join_parts(dict(zip(PARTS, parts, strict=True)))
    for node in (*[service.step for service in image.services], *(network.nodes if network else ())):
        if isinstance(node, HostStep) and (fault := fault_in_size(node, len(content), image.batch)) is not None:
            raise ChipFileError(f"The program cannot be written. {fault} Compile it from a Program of a smaller batch.")
    return content


def from_bytes(content: bytes, name: str) -> tuple[Image, Network | None, bool]:
    """Parse the content of a file; return the program, its network or None, and whether it may spill.

    Args:
        content: the bytes of the file.
        name: name of the file, for error messages.

    Raises:
        ChipFileError: the content is not a program for the chip, is truncated or altered, or has a newer format.
    """
    parts = split_parts(content, name)
    try:
        return _recall(parts, len(content))
    except ChipFileError:
        raise
    except ChipError as error:
        why = str(error)[:800]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        why = f"Its header is invalid ({type(error).__name__}: {str(error)[:600]})."
    raise ChipFileError(f"The file {name!r} cannot be used. {why} Compile it again, or {SAVE_AGAIN}")


def _recall(parts: dict[str, Packed], file_bytes: int) -> tuple[Image, Network | None, bool]:
    # The header gives the maximum sizes of the other parts.
    header = read_json(parts[_HEADER].unpack(MAX_PART_BYTES[_HEADER]))
    design = Design(**header["design"])
    weights_bytes = header["weights_bytes"]
    if not isinstance(weights_bytes, int):
        raise ValueError(f"weights of {weights_bytes!r} bytes")
    weights = parts[_WEIGHTS].unpack(min(weights_bytes, design.weight_memory_bytes))
    arrays = split_arrays(header["arrays"], parts[_ARRAYS].unpack(size_bytes(header["arrays"])))
    recalling = RecordDecoder(arrays, header["steps"], file_bytes, header["batch"])
    image = Image(
        name=header["name"],
        instructions=_instructions(parts[_CODE].unpack(MAX_PART_BYTES[_CODE])),
        weights=np.frombuffer(weights, np.uint8),
        batch=header["batch"],
        host_bytes=header["host_bytes"],
        inputs=tuple(binding(record) for record in header["inputs"]),
        outputs=tuple(binding(record) for record in header["outputs"]),
        services=tuple(recalling.service(record) for record in header["services"]),
        tags=tuple(Tag(**record) for record in header["tags"]),
        residents=tuple(Resident(**record) for record in header["residents"]),
        design=design,
    )
    described = read_json(parts[_NETWORK].unpack(MAX_PART_BYTES[_NETWORK]))
    network = None if described is None else recalling.network(described)
    if network is not None:
        check_network(network, design)
    return image, network, check_spill(header["settings"]["spill"])


def _instructions(code: bytes) -> tuple[Instruction, ...]:
    try:
        return decode(code)
    except ChipFileError as error:
        raise ChipError(str(error)) from error


def _json(value: Any) -> bytes:
    # NumPy scalars are converted to Python numbers.
    return json.dumps(value, separators=(",", ":"), default=np.generic.item).encode()
