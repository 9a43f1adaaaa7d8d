"""Where the time of one step goes: `OpTime` for each operation that the compiler left, `StepTime` for all of them.

Rule: every second says who priced it. What nobody could price stands in `unpriced`, never silently as nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

Kind = Literal["matmul", "vector", "memory", "collective", "copy", "kernel", "host", "input"]
"""What limits an operation: the matrix units (products and convolutions), the vector units (other arithmetic), the main
memory (of any operation that waits for it, products too), the network between chips; or what it is: an exposed
asynchronous copy, a hand-written (Pallas) kernel, the host that dispatches, the input pipeline."""

KINDS: tuple[Kind, ...] = ("matmul", "vector", "memory", "collective", "copy", "kernel", "host", "input")


@dataclasses.dataclass(frozen=True, slots=True)
class OpTime:
    """One operation of the compiled step, on one device.

    Attributes:
        name: what the compiler calls it: "fusion.12".
        opcode: its HLO opcode: "fusion", "all-reduce".
        kind: what limits it, or what it is, as `Kind` lists them.
        time_s: predicted time in one step, all its executions together, seconds.
        count: executions in one step: more than 1 inside a loop.
        flops: floating-point operations in one step, all executions, of one device.
        bytes: bytes moved to and from the memory (of a collective: over the network) in one step, padding included.
        layer: the layer or function of the user's that it came from: "conv1", or "" when the compiler made it.
        source: the user's source line, "model.py:12", or "".
        is_backward: True for the backward pass.
        is_recomputed: True where rematerialisation computes again what the forward pass had computed.
        bound: what limits it: the compute units, the memory, or the network.
        priced_by: who said so: "cycles" (the compiler's estimate), "bandwidth", "network", "cost estimate", "roofline";
            by its instructions "stages", "rows", "updates", "windows", "its code" or "the scalar unit"; "floor" where
            no more than the least is known.
        least_s: the part of `time_s` that its products take at peak, or its bytes at peak bandwidth: it takes no less.
        optional_s: the part of `time_s` that it may not take: since a shorter branch is taken in place of this one, or
            since a kernel may use only a part of its arrays.
        further_s: what it may take on top of `time_s`: if a kernel uses all of its arrays, seconds.
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
    """The predicted time of one step on one device; devices run in step, so it is that of the system.

    Attributes:
        ops: the operations, in order of execution.
        step_s: predicted time of a step, seconds: that of `ops` together, as the calibration of the chip corrects it.
        interval_s: the step time is expected between these, seconds; the upper one is `math.inf` where only the least
            that a step takes is known.
        unpriced: operations that nobody could price, each in words: "scale_kernel (model.py:12): a Pallas kernel
            without cost_estimate".
        evidence: what the numbers rest on, in sentences: the published measurements of this chip and how far off the
            prediction of each was.
    """

    ops: tuple[OpTime, ...] = dataclasses.field(repr=False)
    step_s: float
    interval_s: tuple[float, float]
    unpriced: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    evidence: tuple[str, ...] = dataclasses.field(default=(), repr=False)

    def by(self, key: Callable[[OpTime], str]) -> dict[str, float]:
        """Return seconds by whatever `key` says of an operation, the longest first: `time.by(lambda op: op.layer)`."""
        seconds: dict[str, float] = {}
        for op in self.ops:
            seconds[key(op)] = seconds.get(key(op), 0.0) + op.time_s
        return dict(sorted(seconds.items(), key=lambda pair: -pair[1]))
