"""`OpPrice`: the time of one execution of one instruction, and how it was found."""

from __future__ import annotations

from typing import Literal, NamedTuple

from anytpu.planning.records import Kind

Bound = Literal["compute", "memory", "network", ""]


class OpPrice(NamedTuple):
    """The time of one execution.

    Attributes:
        time_s: from start to end, seconds.
        kind: what limits it, or what it is, as `Kind` lists them.
        bound: the unit that limits it.
        priced_by: the source of the time: "cycles", "bandwidth", "rows", ..., as `OpTime` lists them.
        flops: of its products and convolutions.
        bytes: to and from the memory, or over the network.
        remark: why its price is a guess, or "".
        least_s: time of its products at the peak of the matrix units, or of its bytes at that of the memory if longer.
        optional_s: the part of `time_s` that it may not take.
        further_s: what it may take on top of `time_s`.
        is_endless: whether nobody knows how often a loop of it runs.
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
