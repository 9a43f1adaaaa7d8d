"""`ChipMemories`: the contents of a chip's memories and of the host's buffer."""

from __future__ import annotations

import dataclasses

import numpy as np

from anytpu.chip.image.image import Image
from anytpu.chip.isa.design import BLOCK_BYTES, UNIT_BYTES
from anytpu.errors import CapacityError
from anytpu.files.memory import check_memory


@dataclasses.dataclass
class ChipMemories:
    """The memories of a chip.

    Attributes:
        buffer: the Unified Buffer, uint8 `(bytes,)`.
        accumulators: int32 `(rows, array)`.
        tables: by slot, int8 `(256,)` or int16 `(65536,)`.
        host: the host's buffer, uint8 `(bytes,)`.
        weights: the filled part of the Weight Memory, uint8 `(bytes,)`, whole blocks; read-only.
    """

    buffer: np.ndarray
    accumulators: np.ndarray
    tables: dict[int, np.ndarray]
    host: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, image: Image, spare: ChipMemories | None = None) -> ChipMemories:
        """Return the memories of a chip before it runs an image.

        Args:
            image: the image.
            spare: memories of another run that has ended, for a chip of the same sizes; None: undefined contents are 0.

        Raises:
            CapacityError: this machine lacks the memory for them.
        """
        host = None if spare is None or len(spare.host) < image.host_bytes else spare.host
        if host is None:
            check_room(image)
            host = np.zeros(image.host_bytes, np.uint8)
        design, weights = image.design, whole_blocks(image.weights)
        if spare is not None:
            return cls(spare.buffer, spare.accumulators, {}, host, weights)
        buffer = np.zeros(design.unified_buffer_bytes, np.uint8)
        return cls(buffer, np.zeros((design.accumulator_rows, design.array), np.int32), {}, host, weights)

    def emptied(self) -> ChipMemories:
        """Return the same memories without weights and tables, which are views of an image's."""
        return dataclasses.replace(self, tables={}, weights=np.zeros(0, np.uint8))


def check_room(image: Image, example_bytes: int = 0) -> None:
    """Check that this machine has the free memory to run an image.

    Args:
        image: the image.
        example_bytes: bytes of the inputs of one example that are not in the host's buffer yet.

    Raises:
        CapacityError: it does not.
    """
    design = image.design
    chip_bytes = design.unified_buffer_bytes + design.accumulator_rows * design.array * np.int32().nbytes
    outside_bytes = image.host_bytes + image.batch * example_bytes
    try:
        check_memory(outside_bytes + chip_bytes)
    except ValueError as error:
        raise CapacityError(
            f"This machine lacks the memory to run {image.name!r}: {outside_bytes:,} bytes for the host's buffer "
            f"and the inputs, plus the memories of the chip. Compile it for smaller batches than {image.batch:,}."
        ) from error


def whole_blocks(weights: np.ndarray) -> np.ndarray:
    """Return the contents of the Weight Memory, padded with 0 to whole blocks."""
    missing = -len(weights) % BLOCK_BYTES
    return np.pad(weights, (0, missing)) if missing else weights


def plane_rows(
    buffer: np.ndarray, address: int, pitch: int, lanes: int, dtype: type[np.generic], group: int = 1
) -> np.ndarray:
    """Return the rows of a plane in the Unified Buffer, up to the end of the buffer, in groups of consecutive rows.

    Args:
        buffer: the Unified Buffer, uint8.
        address: unit where row 0 starts.
        pitch: units from a row to the next.
        lanes: number of lanes to take of each row.
        dtype: int8 or uint8.
        group: number of rows of a group.

    Returns:
        The bytes `(groups, group, lanes)`, a view; no group if the first row ends behind the buffer.
    """
    start, row_bytes = address * UNIT_BYTES, pitch * UNIT_BYTES
    groups = ((len(buffer) - start - lanes) // row_bytes + 1) // group
    if groups < 1:
        return np.empty((0, group, lanes), dtype)
    strides = (group * row_bytes, row_bytes, 1)
    return np.ndarray((groups, group, lanes), dtype, buffer, start, strides)  # pyright: ignore[reportArgumentType]
