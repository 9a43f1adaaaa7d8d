"""`collective_price`: the time in which devices exchange data over the links between chips.

Idea: with any algorithm, a chip has to receive the data that it lacks. For an all-gather that is all but its own share
of the result; for an all-reduce, twice that. So the time is bytes over the reached share of the bandwidth of the
group's links, and a latency for each hop.

Rule: bytes are those that a chip receives, not those of the operands.
"""

from __future__ import annotations

from typing import NamedTuple

from anytpu.planning.hlo import Collective
from anytpu.planning.target import Target
from anytpu.planning.timing.rates import Rates
from anytpu.planning.timing.torus import Span, span_of


class NetworkPrice(NamedTuple):
    """Seconds of a collective from start to end, and bytes that a chip receives."""

    time_s: float
    bytes: float


def collective_price(collective: Collective, target: Target, rates: Rates) -> NetworkPrice:
    """Return the time of one collective.

    Args:
        collective: the exchange, with its groups.
        target: the slice.
        rates: rates of the slice's links.
    """
    if collective.kind == "collective-permute":
        return _permute(collective, target, rates)
    span = span_of(target, collective.groups.first)
    if span.chips <= 1:
        # Two cores of one chip exchange through its memory; a group of one only copies.
        moved = collective.operand_bytes + collective.result_bytes
        return NetworkPrice(rates.start_s + moved / rates.streaming_bytes_per_s, 0.0)
    taken_in = _taken_in(collective, span)
    rounds = 2 if collective.kind == "all-reduce" else 1
    latency_s = rates.collective_start_s + rounds * span.hops * rates.hop_s
    rate = span.links * rates.link_bytes_per_s * _share(collective.kind, rates)
    return NetworkPrice(latency_s + taken_in / rate, taken_in)


def _share(kind: str, rates: Rates) -> float:
    if kind == "all-reduce":
        return rates.reduce_share
    return rates.exchange_share if "all-to-all" in kind else rates.gather_share


def _taken_in(collective: Collective, span: Span) -> float:
    """Return the bytes that a chip receives over all of its links."""
    others = (span.chips - 1) / span.chips
    if collective.kind == "all-reduce":
        # The cores of a chip reduce their shares first.
        return 2 * others * collective.operand_bytes
    if collective.kind == "reduce-scatter":
        return others * collective.operand_bytes
    if "all-to-all" in collective.kind:
        # On average, data travels a quarter of a ring, or a third of a line.
        steps = sum(side.chips / (4 if side.links == 2 else 3) for side in span.sides)
        return span.cores * collective.operand_bytes * others * max(1.0, steps)
    return others * collective.result_bytes


def _permute(collective: Collective, target: Target, rates: Rates) -> NetworkPrice:
    per_chip = target.devices // target.chips or 1
    distances = sorted(abs(destination // per_chip - source // per_chip) for source, destination in collective.pairs)
    hops = min(distances[len(distances) // 2], max(target.chip_bounds)) if distances else 1
    if not hops:
        return NetworkPrice(rates.start_s + 2 * collective.operand_bytes / rates.streaming_bytes_per_s, 0.0)
    seconds = collective.operand_bytes / (rates.link_bytes_per_s * rates.gather_share)
    return NetworkPrice(rates.collective_start_s + hops * rates.hop_s + seconds, collective.operand_bytes)
