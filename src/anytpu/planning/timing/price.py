"""`OpPrice`: the time of one execution of one instruction, and its source."""

from __future__ import annotations

from typing import Literal, NamedTuple

from anytpu.planning.records import Kind

Bound = Literal["compute", "memory", "network", ""]


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
