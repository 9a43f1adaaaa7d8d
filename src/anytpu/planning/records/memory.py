"""What lies in a device's memory when a step needs most of it: `Memory` and its largest `Buffer`s."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """One array in the memory of a device.

    Attributes:
        name: what people call it: "dense/kernel", "conv1 output", or what the compiler calls it.
        use: "state" (weights, optimizer slots), "batch", "temporary" (activations, gradients), "output", "code".
        bytes: as it lies there, padding included.
        logical_bytes: without padding.
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
        """How many times as large as its numbers it is."""
        return self.bytes / self.logical_bytes if self.logical_bytes else 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class BatchPadding:
    """What padding of the axis along which the examples lie takes.

    Attributes:
        rows: the rows of a device.
        unit: what the memory rounds them up to: 8, or 128 along the fastest axis.
        share: the part of the bytes that the operations of a step take and return that is this padding.
        largest: the shape that most of it is of: "bf16[12,1024]".
    """

    rows: int
    unit: int
    share: float
    largest: str


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one device.

    Attributes:
        peak_bytes: the most that is in use at a time, code and the next batch included; what it would need, where it
            does not fit.
        limit_bytes: what the compiler lets a program use.
        upper_bound_bytes: arguments, outputs and temporaries added up, as if none shared memory with another; or None.
        buffers: the largest ones, largest first.
        padding_waste_bytes: bytes that padding takes, over all arguments, outputs and large temporaries.
        said: what the compiler said of a program that does not fit; "" of one that does.
    """

    peak_bytes: int
    limit_bytes: int
    upper_bound_bytes: int | None = None
    buffers: tuple[Buffer, ...] = dataclasses.field(default=(), repr=False)
    padding_waste_bytes: int = 0
    said: str = dataclasses.field(default="", repr=False)

    @property
    def fits(self) -> bool:
        """Whether the compiler accepts it."""
        return not self.said and self.peak_bytes <= self.limit_bytes

    @property
    def missing_bytes(self) -> int:
        """How much memory is missing, 0 when it fits."""
        return 0 if self.fits else max(self.peak_bytes - self.limit_bytes, 1)
