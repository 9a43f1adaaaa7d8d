"""The time and the memory of one step on one device: `OpTime`, `StepTime`, `Buffer`, `MemoryUse`.

Rule: every second names the source of its price. An operation without a price is listed in `unpriced`, never counted as
0 silently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

Kind = Literal["matmul", "vector", "memory", "collective", "copy", "kernel", "host", "input"]
"""The limit of an operation: the matrix units (products and convolutions), the vector units (other arithmetic), the
main memory (any operation that waits for it, products too), or the network between chips. Otherwise its nature: an
exposed asynchronous copy, a hand-written (Pallas) kernel, the dispatch by the host, the input pipeline."""

KINDS: tuple[Kind, ...] = ("matmul", "vector", "memory", "collective", "copy", "kernel", "host", "input")

NO_LAYER = "(outside of layers)"
"""Layer name for operations outside the user's layers."""

Bound = Literal["compute", "memory", "network", ""]
"""The unit that limits an operation: the compute units, the memory, or the network."""


class OpPrice(NamedTuple):
    """The time of one execution.

    Attributes:
        time_s: from start to end, seconds.
        kind: its limit, or its nature, as `Kind` lists them.
        bound: the unit that limits it.
        priced_by: the source of the time: "cycles", "bandwidth", "rows", ..., as `OpTime` lists them.
        flops: FLOPs of its products and convolutions.
        bytes: bytes to and from the memory, or over the network.
        remark: why its price is a guess, or "".
        least_s: minimum, seconds: its products at the peak of the matrix units, or its bytes at the peak of the memory
            if that is longer.
        optional_s: part of `time_s` that may not occur, seconds.
        further_s: time that may come on top of `time_s`, seconds.
        is_endless: whether it contains a loop of unknown length.
        collective: kind of the collective that it is: "all-reduce"; "" for any other operation.
        dtype: type of the elements that a collective moves: "bf16"; "" for any other operation.
    """

    time_s: float
    kind: Kind
    bound: Bound
    priced_by: str
    flops: float = 0.0
    bytes: float = 0.0
    remark: str = ""
    least_s: float = 0.0
    optional_s: float = 0.0
    further_s: float = 0.0
    is_endless: bool = False
    collective: str = ""
    dtype: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class OpTime:
    """One operation of the compiled step, on one device.

    Attributes:
        name: the compiler's name: "fusion.12".
        opcode: its HLO opcode: "fusion", "all-reduce".
        kind: its limit, or its nature, as `Kind` lists them.
        time_s: predicted time in one step, all its executions together, seconds.
        count: executions in one step: more than 1 inside a loop.
        flops: floating-point operations in one step, all executions, of one device.
        bytes: bytes moved to and from the memory in one step, padding included; for a collective, over the network.
        layer: the user's layer or function that it came from: "conv1"; "" if the compiler made it.
        source: the user's source line, "model.py:12", or "".
        is_backward: whether it belongs to the backward pass.
        is_recomputed: whether rematerialisation repeats a computation of the forward pass.
        bound: the unit that limits it.
        priced_by: source of the time: "cycles" (the compiler's estimate), "bandwidth", "network", "cost estimate" or
            "roofline". By its instructions: "stages", "rows", "updates", "windows", "its code" or "the scalar unit".
            "floor" if only the minimum is known.
        least_s: minimum of `time_s`, seconds: its products at peak, or its bytes at peak bandwidth.
        optional_s: part of `time_s` that may not occur, seconds: a shorter branch is taken, or a kernel uses only a
            part of its arrays.
        further_s: time that may come on top of `time_s`, seconds: a kernel uses all of its arrays.
        collective: kind of the collective that it is, or waits for: "all-reduce"; "" for any other operation.
        dtype: type of the elements that it moves, of a collective: "bf16"; "" for any other operation.
    """

    name: str
    opcode: str
    kind: Kind
    time_s: float
    count: int = 1
    flops: float = 0.0
    bytes: float = 0.0
    layer: str = ""
    source: str = ""
    is_backward: bool = False
    is_recomputed: bool = False
    bound: Bound = ""
    priced_by: str = "cycles"
    least_s: float = 0.0
    optional_s: float = 0.0
    further_s: float = 0.0
    collective: str = ""
    dtype: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class StepTime:
    """The predicted time of one step on one device. Devices run in lockstep, so it is also the time of the system.

    Attributes:
        ops: the operations, in order of execution.
        step_s: predicted time of a step, seconds: the sum over `ops`, corrected by the calibration of the chip.
        interval_s: bounds of the step time, seconds; the upper one is `math.inf` if only the minimum of a step is
            known.
        unpriced: operations without a price, a text each: "scale_kernel (model.py:12): a Pallas kernel without
            cost_estimate".
        evidence: basis of the numbers, in sentences: the published measurements of this chip and the error of the
            prediction of each.
    """

    ops: tuple[OpTime, ...] = dataclasses.field(repr=False)
    step_s: float
    interval_s: tuple[float, float]
    unpriced: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    evidence: tuple[str, ...] = dataclasses.field(default=(), repr=False)

    def by(self, key: Callable[[OpTime], str]) -> dict[str, float]:
        """Return seconds by the result of `key` for each operation, the longest first: `time.by(lambda op:
        op.layer)`."""
        seconds: dict[str, float] = {}
        for op in self.ops:
            seconds[key(op)] = seconds.get(key(op), 0.0) + op.time_s
        return dict(sorted(seconds.items(), key=lambda pair: -pair[1]))


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


PartKind = Literal["weights", "frozen", "slots", "cache", "state", "batch", "gradients", "activations", "code"]
"""Kinds of the arrays in the memory of a device.

"weights": weights that are trained. "frozen": weights that are not trained, statistics, random state. "slots": of the
optimizer. "cache": keys and values of a language model. "state": state of another kind, such as metrics, or all of it
if its kinds are not known. "batch": this batch and the next one. "gradients": gradients of weights. "activations": all
other temporaries and outputs.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryPart:
    """The arrays of one kind in the memory of a device, at the peak.

    Attributes:
        kind: kind of the arrays.
        bytes: their size in memory, padding included.
    """

    kind: PartKind
    bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of one device.

    Attributes:
        peak_bytes: maximum in use at a time, code and the next batch included; the need of a program that does not fit.
        limit_bytes: memory that the compiler lets a program use.
        upper_bound_bytes: sum of arguments, outputs and temporaries, as if none shared memory with another; or None.
        buffers: the largest buffers, largest first.
        padding_waste_bytes: padding of all arguments, outputs and large temporaries, bytes.
        said: the compiler's message on a program that does not fit; "" for one that does.
        parts: the peak by kind of arrays; () if it is not known.
    """

    peak_bytes: int
    limit_bytes: int
    upper_bound_bytes: int | None = None
    buffers: tuple[Buffer, ...] = dataclasses.field(default=(), repr=False)
    padding_waste_bytes: int = 0
    said: str = dataclasses.field(default="", repr=False)
    parts: tuple[MemoryPart, ...] = dataclasses.field(default=(), repr=False)

    @property
    def fits(self) -> bool:
        """Whether the compiler accepts the program."""
        return not self.said and self.peak_bytes <= self.limit_bytes

    @property
    def missing_bytes(self) -> int:
        """Bytes above the limit, 0 if the program fits."""
        return 0 if self.fits else max(self.peak_bytes - self.limit_bytes, 1)

    def bytes_of(self, *kinds: str) -> int:
        """Return the bytes of the parts of some kinds of arrays: "weights", "cache"."""
        return sum(part.bytes for part in self.parts if part.kind in kinds)
