"""`.tpu` files: a program for the chip, with the quantized network that it was compiled from.

Idea: a file is a zip of parts with their checksums, as a program file is (`program/archive.py`):

- "header.json": the format, the image without its instructions and weights, the operations of the host's steps, and the
  dtypes and shapes of the arrays.
- "code": the instructions, as `isa` encodes them.
- "weights": the bytes of the Weight Memory.
- "network.json": the quantized network, or null.
- "arrays": the arrays of the network and of the host's steps (`image/serialization.py`).

Rule: a file contains no Python code, so reading it executes nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from anytpu.chip.graph.nodes import HostStep, Network
from anytpu.chip.image.image import Image
from anytpu.chip.image.serialization import (
    RecordDecoder,
    RecordEncoder,
    arrays_bytes,
    fault_in_size,
    join_arrays,
    split_arrays,
)
from anytpu.chip.images import check_spill
from anytpu.chip.isa import decode, encode
from anytpu.chip.isa.design import Design
from anytpu.chip.network.operations import NONSENSE
from anytpu.chip.quantized.checking import check_network
from anytpu.errors import ChipError, ChipFileError, ProgramError
from anytpu.files.json_text import MAX_JSON_BYTES, check_json, read_json
from anytpu.files.memory import check_ratio
from anytpu.program.archive import ArchiveParts, write_parts

SUFFIX = ".tpu"
"""Suffix of a program file's name."""

FORMAT = 2
"""Version of the format that is written, and the only one that is read."""

_HEADER, _CODE, _WEIGHTS, _NETWORK, _ARRAYS = "header.json", "code", "weights", "network.json", "arrays"
PARTS: tuple[str, ...] = (_HEADER, _CODE, _WEIGHTS, _NETWORK, _ARRAYS)
"""Names of the parts of a file."""

MAX_PART_BYTES: dict[str, int] = {_HEADER: MAX_JSON_BYTES, _CODE: 16 * 2**20, _NETWORK: MAX_JSON_BYTES}
"""Maximum bytes of these parts: enough for 2,500 steps of an LSTM. The header has the size of the weights."""

_FORMER = {b"\x89TPU": f"is of format 1, not {FORMAT}. Compile it again, with tpu.chip.compile or anytpu chip compile."}
_WRITER = "ChipProgram.save or anytpu chip compile"
"""What writes such files, for the errors."""


def write(path: str | Path, image: Image, network: Network | None = None, spill: bool = True) -> Path:
    """Write a program to a file, and return its path.

    Args:
        path: path of the file; its name ends in ".tpu". An existing file is replaced atomically.
        image: the program.
        network: the network that it was compiled from, so that a reader can compile it for another batch. None: omit
            it.
        spill: whether later compilations may move tensors that exceed the Unified Buffer to the host.

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

    def check(file_bytes: int) -> None:
        try:
            _check_buffer(image, file_bytes)
        except ChipError as error:
            raise ChipFileError(f"The program cannot be written. {error} Compile it for a smaller batch.") from error
        for node in (*[service.step for service in image.services], *(network.nodes if network else ())):
            if isinstance(node, HostStep) and (fault := fault_in_size(node, file_bytes, image.batch)) is not None:
                told = f"The program cannot be written. {fault} Compile it from a Program of a smaller batch."
                raise ChipFileError(told)

    try:
        write_parts(place, _parts(image, network, spill), (_WEIGHTS, _ARRAYS), check)
    except ProgramError as error:
        raise ChipFileError(str(error)) from error
    return place


def _parts(image: Image, network: Network | None, spill: bool) -> dict[str, bytes]:
    records = RecordEncoder()
    header: dict[str, Any] = {"format": FORMAT, "image": records.fields(image, "instructions", "weights")}
    described = None if network is None else records.value(network)
    listed, arrays = join_arrays(records.arrays)
    header |= {"steps": records.steps, "arrays": listed, "weights_bytes": len(image.weights), "spill": spill}
    weights = np.ascontiguousarray(image.weights, np.uint8).tobytes()
    contents = _json(header), encode(image.instructions), weights, _json(described), arrays
    parts = dict(zip(PARTS, contents, strict=True))
    for name, maximum in MAX_PART_BYTES.items():
        if len(parts[name]) > maximum:
            raise ChipFileError(
                f"The program cannot be written: part {name!r} of its file would have {len(parts[name]):,} bytes, and "
                f"{maximum:,} is the most that it can have."
            )
        if name != _CODE:
            try:
                check_json(parts[name])
            except ValueError as error:
                raise ChipFileError(f"The program cannot be written: part {name!r} of its file: {error}.") from error
    return parts


def read(path: str | Path) -> tuple[Image, Network | None, bool]:
    """Read a program from a file.

    Returns:
        The program, its quantized network (None if the file has none), and whether its compilation may spill.

    Raises:
        ChipFileError: the file does not exist, is not a program for the chip, is truncated or altered, or has another
            format.

    Example:
        >>> image, network, spill = read("model.tpu")  # doctest: +SKIP
    """
    try:
        with ArchiveParts(Path(path), (_HEADER,), _WRITER, _FORMER) as parts:
            return _recall(parts, Path(path))
    except ProgramError as error:
        raise ChipFileError(str(error)) from error
    except ChipError as error:
        why = str(error)[:800]
    except NONSENSE as error:
        why = f"Its header is invalid ({type(error).__name__}: {str(error)[:600]})."
    raise ChipFileError(
        f"The file {str(path)!r} cannot be used. {why} Compile it again, or save it again, with {_WRITER}."
    )


def _recall(parts: ArchiveParts, path: Path) -> tuple[Image, Network | None, bool]:
    # The format is known before the other parts. The header gives their maximum sizes.
    header = read_json(parts.read(_HEADER, MAX_PART_BYTES[_HEADER]))
    version = header["format"]
    if isinstance(version, int) and version > FORMAT:
        raise ProgramError(
            f"The program file {str(path)!r} is of format {version!r:.20}, and this release of anytpu reads format "
            f"{FORMAT}. Install a newer one: pip install --upgrade anytpu"
        )
    if version != FORMAT:
        raise ChipError(f"It is of format {version!r:.20}, and this release of anytpu reads format {FORMAT}.")
    weights_bytes = header["weights_bytes"]
    if not isinstance(weights_bytes, int):
        raise ValueError(f"weights of {weights_bytes!r} bytes")
    design = Design(**header["image"]["design"])
    weights = parts.read(_WEIGHTS, min(weights_bytes, design.weight_memory_bytes))
    arrays = split_arrays(header["arrays"], parts.read(_ARRAYS, arrays_bytes(header["arrays"])))
    records = RecordDecoder(arrays, header["steps"], path.stat().st_size, header["image"]["batch"])
    code = parts.read(_CODE, MAX_PART_BYTES[_CODE])
    image = records.record(Image, header["image"], instructions=decode(code), weights=np.frombuffer(weights, np.uint8))
    _check_buffer(image, path.stat().st_size)
    described = read_json(parts.read(_NETWORK, MAX_PART_BYTES[_NETWORK]))
    network = None if described is None else records.record(Network, described)
    if network is not None:
        check_network(network, design)
        _check_interface(network, image)
    return image, network, check_spill(header["spill"])


def _check_buffer(image: Image, file_bytes: int) -> None:
    try:
        check_ratio(file_bytes, image.host_bytes)
    except ValueError as error:
        raise ChipError(f"Its host's buffer of {image.host_bytes:,} bytes is too large: {error}.") from error


def _check_interface(network: Network, image: Image) -> None:
    """Raise an error if the instructions hold another tensor than the network, or do not compute an output of it."""
    services = [bound for service in image.services for bound in (*service.inputs, service.output)]
    for bound in filter(None, (*image.inputs, *image.outputs, *services)):
        described = network.shapes.get(bound.tensor), network.quantizations.get(bound.tensor)
        if described != (bound.shape, bound.quantization):
            raise ChipError(f"Its instructions hold {bound.tensor!r:.100} in another form than its network describes.")
    computed = {binding.tensor for binding in (*image.inputs, *image.outputs)}
    for service in image.services:
        computed |= {service.step.output, *service.step.inputs}
    for port in network.outputs:
        if port.tensor not in computed:
            raise ChipError(f"Its instructions do not compute {port.tensor!r}, an output of its network.")


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
