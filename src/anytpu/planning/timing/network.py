"""`collective_price`: how long devices exchange data over the links between chips.

Idea: whatever the algorithm, a chip has to take in what it does not have: of an all-gather, all but its own share of
the result; of an all-reduce, that twice. So the time is bytes over the bandwidth of the links that the group has, of
which a share is reached, and for each hop a latency. Groups that are larger than the slice go over the data-center
network.

Rule: bytes are those that a chip takes in, not those of the operands.
"""

from __future__ import annotations

from typing import NamedTuple

from anytpu.planning.target import Target
from anytpu.planning.timing.groups import group_of, hops_of
from anytpu.planning.timing.rates import Rates
from anytpu.planning.timing.torus import Span, span_of

COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
    "collective-broadcast",
)  # fmt: skip
"""Opcodes of collectives, without "-start"."""


class NetworkPrice(NamedTuple):
    """Seconds that a collective takes from start to end, and bytes that a chip takes in."""

    time_s: float
    bytes: float


def collective_price(opcode: str, text: str, size_bytes: float, target: Target, rates: Rates) -> NetworkPrice:
    """Return the time of one collective.

    Args:
        opcode: one of `COLLECTIVES`.
        text: the instruction's line, for its groups.
        size_bytes: of one device: the larger of what goes in and what comes out.
        target: the slice.
        rates: what its links do.
    """
    if opcode == "collective-permute":
        return _permute(text, size_bytes, target, rates)
    group = group_of(text, target.devices)
    if group.size <= 1:
        return NetworkPrice(rates.start_s, 0.0)
    span = span_of(target, group)
    taken_in = _taken_in(opcode, size_bytes, span)
    if span.chips <= 1:
        # Two cores of one chip exchange through its memory.
        return NetworkPrice(rates.start_s + 2 * size_bytes / rates.streaming_bytes_per_s, 0.0)
    share = {"all-reduce": rates.reduce_share}.get(opcode, rates.gather_share)
    if opcode in ("all-to-all", "ragged-all-to-all"):
        share = rates.exchange_share
    rounds = 2 if opcode == "all-reduce" else 1
    latency_s = rates.collective_start_s + rounds * span.hops * rates.hop_s
    return NetworkPrice(latency_s + taken_in / (span.links * rates.link_bytes_per_s * share), taken_in)


def _taken_in(opcode: str, size_bytes: float, span: Span) -> float:
    """Return the bytes that a chip takes in over all of its links."""
    others = (span.chips - 1) / span.chips
    if opcode == "all-reduce":
        # The cores of a chip add up their shares first.
        return 2 * others * size_bytes
    if opcode in ("all-to-all", "ragged-all-to-all"):
        # What a chip sends goes a quarter of the way round a ring, half the way along a line, on average.
        steps = sum(side.chips / (4 if side.links == 2 else 2) for side in span.sides)
        return span.cores * size_bytes * others * steps / max(1, len(span.sides))
    return others * size_bytes * (span.cores if opcode == "reduce-scatter" else 1)


def _permute(text: str, size_bytes: float, target: Target, rates: Rates) -> NetworkPrice:
    per_chip = target.devices // target.chips or 1
    steps = max(1, hops_of(text) // per_chip)
    cores = 1 if hops_of(text) < per_chip else per_chip
    seconds = cores * size_bytes / (rates.link_bytes_per_s * rates.gather_share)
    return NetworkPrice(rates.collective_start_s + steps * rates.hop_s + seconds, cores * size_bytes)
