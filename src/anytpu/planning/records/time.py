"""The time of one step by operation: `OpTime` for each operation of the compiled module, `StepTime` for all of them.

Rule: every second names the source of its price. An operation without a price is listed in `unpriced`, never counted as
0 silently.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

Kind = Literal["matmul", "vector", "memory", "collective", "copy", "kernel", "host", "input"]
"""The limit of an operation: the matrix units (products and convolutions), the vector units (other arithmetic), the
main memory (any operation that waits for it, products too), or the network between chips. Otherwise its nature: an
exposed asynchronous copy, a hand-written (Pallas) kernel, the dispatch by the host, the input pipeline."""

KINDS: tuple[Kind, ...] = ("matmul", "vector", "memory", "collective", "copy", "kernel", "host", "input")


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
        bound: its limit: the compute units, the memory, or the network.
        priced_by: source of the time: "cycles" (the compiler's estimate), "bandwidth", "network", "cost estimate" or
            "roofline". By its instructions: "stages", "rows", "updates", "windows", "its code" or "the scalar unit".
            "floor" if only the minimum is known.
        least_s: minimum of `time_s`, seconds: its products at peak, or its bytes at peak bandwidth.
        optional_s: part of `time_s` that may not occur, seconds: a shorter branch is taken, or a kernel uses only a
            part of its arrays.
        further_s: time that may come on top of `time_s`, seconds: a kernel uses all of its arrays.
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
    bound: Literal["compute", "memory", "network", ""] = ""
    priced_by: str = "cycles"
    least_s: float = 0.0
    optional_s: float = 0.0
    further_s: float = 0.0


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
