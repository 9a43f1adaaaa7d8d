"""The memory of a device at its peak: `Memory` and its largest `Buffer`s."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """One array in the memory of a device.

    Attributes:
        name: the user's name: "dense/kernel", "conv1 output"; else the compiler's name.
        use: "state" (weights, optimizer slots), "batch", "temporary" (activations, gradients), "output", "code".
        bytes: size in memory, padding included.
        logical_bytes: size without padding, bytes.
        shape: as the compiler writes it: "bf16[128,28,28,32]".
        layer: the user's layer or function, or "".
        source: the user's source line, or "".
    """

    name: str
    use: Literal["state", "batch", "temporary", "output", "code"]
    bytes: int
    logical_bytes: int
    shape: str
    layer: str = ""
    source: str = ""

    @property
    def padding_factor(self) -> float:
        """Ratio of the size in memory to the size without padding."""
        return self.bytes / self.logical_bytes if self.logical_bytes else 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class BatchPadding:
    """Padding of the axis of the examples.

    Attributes:
        rows: number of rows of a device.
        unit: the memory rounds the rows up to a multiple of this: 8, or 128 along the fastest axis.
        share: share of this padding in the bytes that the operations of a step take and return, 0 to 1.
        largest: the shape with the most of this padding: "bf16[12,1024]".
    """

    rows: int
    unit: int
    share: float
    largest: str


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one device.

    Attributes:
        peak_bytes: maximum in use at a time, code and the next batch included; the need of a program that does not fit.
        limit_bytes: memory that the compiler lets a program use.
        upper_bound_bytes: sum of arguments, outputs and temporaries, as if none shared memory with another; or None.
        buffers: the largest buffers, largest first.
        padding_waste_bytes: padding of all arguments, outputs and large temporaries, bytes.
        said: the compiler's message on a program that does not fit; "" for one that does.
    """

    peak_bytes: int
    limit_bytes: int
    upper_bound_bytes: int | None = None
    buffers: tuple[Buffer, ...] = dataclasses.field(default=(), repr=False)
    padding_waste_bytes: int = 0
    said: str = dataclasses.field(default="", repr=False)

    @property
    def fits(self) -> bool:
        """Whether the compiler accepts the program."""
        return not self.said and self.peak_bytes <= self.limit_bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes above the limit, 0 if the program fits."""
        return 0 if self.fits else max(self.peak_bytes - self.limit_bytes, 1)
