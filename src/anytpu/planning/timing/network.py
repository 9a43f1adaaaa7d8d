"""`collective_price`, `transfer_price`: the time in which devices exchange data, over links between chips or hosts.

Idea: with any algorithm, a chip has to receive the data that it lacks. For an all-gather that is all but its own share
of the result; for an all-reduce, twice that. So the time is bytes over the reached share of the bandwidth of the
group's links, and a latency for each hop.

Chips form a grid, each wired to its neighbours. If a side of the grid is as long as the pod's, its ends are wired
together to a ring. From v4 on, so are those of a side made of whole cubes of four. A group of devices lies along some
sides of the grid. Along a ring a chip sends in both directions at once. Along a line it has the bandwidth of one
direction, because the middle has to carry data for both ends. So a group's bandwidth is the sum over its sides' links.

Between slices, every device has a share, because the compiler reduces within each slice first. Each device hands its
share to its host ("send") and takes the result back ("recv"). The host's runtime exchanges it with the hosts of the
other slices. So the bytes of a "send" are those that a device puts on the wire, once more for every slice that a ring
passes. Peaks are those of the hosts' network cards, shared by their chips. Only a share is reached: the published sum
of 606 MB over two slices of v6e-256 ran at 4.1 GB/s, a third of 12.5. With this, float32 gradients of 16 billion
weights add 0.24 s to a step of 10.1 s on 2 x v5e-256. 0.26 s were published.

Rule: bytes are those that a chip receives, not those of the operands. A group that does not fill sides of the grid is
treated as a compact block of it, without rings.

Source: https://jax-ml.github.io/scaling-book/sharding and the wrap-around rules on the pages of each chip under
https://cloud.google.com/tpu/docs. Between slices: https://github.com/AI-Hypercomputer/tpu-recipes
(microbenchmarks/trillium/collectives) and https://github.com/AI-Hypercomputer/maxtext (configs/v5e).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from typing import Literal, NamedTuple

from anytpu.planning.hlo import Collective, HloInstruction
from anytpu.planning.records import OpPrice
from anytpu.planning.records.target import Target
from anytpu.planning.timing.rates import Rates

ACHIEVED_SHARE = 0.33
"""Share of the peak that an exchange reaches: 4.1 of 12.5 GB/s on two slices of v6e-256."""

START_S = 1e-4
"""Latency of an exchange, seconds, a guess: two copies between chip and host, and a message between hosts."""

RINGS_ONLY = ("v2", "v3", "v4")
"""Chips on which the compiler adds up short arrays in rings, as it does long ones. On later ones it exchanges them
whole, and says so in the code of an all-reduce (`RotatedPincerShortEmitter`, of 4 to 64 chips), not in a schedule."""

BETWEEN_SLICES = "exchange between slices"
"""Kind of a collective over the data center's network."""

_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="?([\w.\-]+)')
_KIND = re.compile(r'_xla_megascale_transfer_type="?(\w+)')


def collective_price(collective: Collective, target: Target, rates: Rates) -> OpPrice:
    """Return the price of a collective from start to end, with the bytes that a chip receives.

    Args:
        collective: the exchange, with its groups.
        target: the slice.
        rates: rates of the slice's links.
    """
    if collective.kind == "collective-permute":
        return _permute(collective, target, rates)
    block = block_of(target, collective.group)
    if block.chips <= 1:
        # Two cores of one chip exchange through its memory; a group of one only copies.
        moved = collective.operand_bytes + collective.result_bytes
        return _network_price(rates.start_s + moved / rates.streaming_bytes_per_s, 0.0)
    received_bytes = _received_bytes(collective, block)
    # An all-reduce is a reduce-scatter and an all-gather.
    rounds = 2 if collective.kind == "all-reduce" else 1
    latency_s = rates.collective_start_s + rounds * block.hops * rates.hop_s
    rate = block.links * rates.link_bytes_per_s * _share(collective.kind, rates)
    seconds = latency_s + received_bytes / rate
    if collective.kind == "all-reduce" and target.chip.name not in RINGS_ONLY:
        # Short arrays are exchanged whole, in one round along each side: a chip adds up those of all others.
        arrays = sum(side.chips - 1 for side in block.sides)
        whole_s = rates.small_start_s + block.hops * rates.hop_s + arrays * collective.operand_bytes / rate
        seconds = min(seconds, whole_s)
    return _network_price(seconds, received_bytes)


def _share(kind: str, rates: Rates) -> float:
    if kind == "all-reduce":
        return rates.reduce_share
    return rates.exchange_share if "all-to-all" in kind else rates.gather_share


def _received_bytes(collective: Collective, block: TorusBlock) -> float:
    """Return the bytes that a chip receives over all of its links."""
    others = (block.chips - 1) / block.chips
    if collective.kind == "all-reduce":
        # The cores of a chip reduce their shares first.
        return 2 * others * collective.operand_bytes
    if collective.kind == "reduce-scatter":
        return others * collective.operand_bytes
    if "all-to-all" in collective.kind:
        # On average, data travels a quarter of a ring, or a third of a line.
        steps = sum(side.chips / (4 if side.links == 2 else 3) for side in block.sides)
        return block.cores * collective.operand_bytes * others * max(1.0, steps)
    return others * collective.result_bytes


def _permute(collective: Collective, target: Target, rates: Rates) -> OpPrice:
    """Return the price over the median distance in hops, at most the longest side of the slice."""
    per_chip = target.devices // target.chips or 1
    distances = sorted(abs(destination // per_chip - source // per_chip) for source, destination in collective.pairs)
    hops = min(distances[len(distances) // 2], max(target.chip_bounds)) if distances else 1
    if not hops:
        return _network_price(rates.start_s + 2 * collective.operand_bytes / rates.streaming_bytes_per_s, 0.0)
    seconds = collective.operand_bytes / (rates.link_bytes_per_s * rates.gather_share)
    # A chip writes into another one's memory and sets a flag there, as in one round of a short all-reduce.
    return _network_price(rates.small_start_s + hops * rates.hop_s + seconds, collective.operand_bytes)


def _network_price(time_s: float, moved_bytes: float) -> OpPrice:
    return OpPrice(time_s, "collective", "network", "network", bytes=moved_bytes)


@dataclasses.dataclass(frozen=True, slots=True)
class TorusSide:
    """One side of the block of chips that a group fills: its length, and whether it is a ring."""

    chips: int
    is_ring: bool

    @property
    def links(self) -> int:
        """Number of links of a chip whose bandwidth adds up along this side."""
        return 2 if self.is_ring and self.chips > 2 else 1

    @property
    def hops(self) -> int:
        """Number of hops of data that visits every chip of the side."""
        return self.chips // 2 if self.links == 2 else self.chips - 1


@dataclasses.dataclass(frozen=True, slots=True)
class TorusBlock:
    """The chips of a group.

    Attributes:
        sides: sides of the block, without those of length 1.
        cores: number of the group's devices on one chip.
        share: the group's share of the chip's links: a half if each core of a chip is in another group.
    """

    sides: tuple[TorusSide, ...]
    cores: int
    share: float

    @property
    def chips(self) -> int:
        """Number of chips of the block."""
        return math.prod(side.chips for side in self.sides)

    @property
    def links(self) -> float:
        """Number of links of a chip that the group has, over all sides."""
        return sum(side.links for side in self.sides) * self.share

    @property
    def hops(self) -> int:
        """Number of hops along all sides, one after the other."""
        return sum(side.hops for side in self.sides)


def block_of(target: Target, devices: tuple[int, ...]) -> TorusBlock:
    """Return the chips of a group of devices.

    Args:
        target: the slice.
        devices: indices of the group's devices; () for all of the slice.

    Example:
        >>> from anytpu.planning.records.target import target_named
        >>> block = block_of(target_named("v5e-16"), tuple(range(16)))
        >>> block.chips, block.links, block.hops
        (16, 2.0, 6)
    """
    per_chip = target.devices // target.chips or 1
    whole = tuple(_side(target, chips) for chips in target.chip_bounds if chips > 1)
    if not devices or len(devices) >= target.devices:
        return TorusBlock(whole, per_chip, 1.0)
    # Neighbouring indices are the cores of one chip.
    cores = len(devices) // len({index // per_chip for index in devices})
    return TorusBlock(_block_sides(whole, max(1, len(devices) // cores)), cores, cores / per_chip)


def _side(target: Target, chips: int) -> TorusSide:
    if target.chip.torus_rank == 2:
        pod_side = math.isqrt(target.chip.pod_chips)
        return TorusSide(chips, chips == pod_side)
    # From v4 on, rings are made of whole cubes of 4 x 4 x 4 chips.
    return TorusSide(chips, all(bound % 4 == 0 for bound in target.chip_bounds))


def _block_sides(whole: tuple[TorusSide, ...], chips: int) -> tuple[TorusSide, ...]:
    """Return the sides of a block of so many chips: whole sides of the grid if any fit, the best wired first."""
    if chips <= 1:
        return ()
    choices = [
        chosen
        for count in range(1, len(whole) + 1)
        for chosen in itertools.combinations(whole, count)
        if math.prod(side.chips for side in chosen) == chips
    ]
    if choices:
        return max(choices, key=lambda chosen: sum(side.links for side in chosen))
    return tuple(TorusSide(side, False) for side in _factors(chips, max(1, len(whole))) if side > 1)


def _factors(chips: int, count: int) -> list[int]:
    """Factor a number into so many factors, as equal as possible."""
    sides = []
    for left in range(count, 0, -1):
        # The last factor is all that is left, so the product is exact.
        ideal = chips ** (1 / left)
        side = min((d for d in range(1, chips + 1) if chips % d == 0), key=lambda d: abs(d - ideal))
        sides.append(side)
        chips //= side
    return sides


class Transfer(NamedTuple):
    """One half of an exchange between slices.

    Attributes:
        name: name that both halves share: "all-reduce.9_0".
        way: "send" or "recv".
        is_sum: whether the slices add up the arrays that they send.
        bytes: bytes that a device sends or receives, padding included.
    """

    name: str
    way: Literal["send", "recv"]
    is_sum: bool
    bytes: float


def transfer_of(instruction: HloInstruction) -> Transfer | None:
    """Return the half of an exchange that an instruction starts; None for any other.

    Args:
        instruction: an instruction of the entry computation, or of a loop.
    """
    if instruction.opcode not in ("send", "recv") or not is_between_slices(instruction):
        return None
    name, kind = _RENDEZVOUS.search(instruction.text), _KIND.search(instruction.text)
    size = max((shape.padded_bytes for shape in instruction.shapes if shape.dims), default=0)
    way: Literal["send", "recv"] = "send" if instruction.opcode == "send" else "recv"
    return Transfer(name[1] if name else instruction.name, way, bool(kind and kind[1] == "ALL_REDUCE"), float(size))


def is_between_slices(instruction: HloInstruction) -> bool:
    """Return whether a send, a recv, or a wait for one, is for another slice rather than for the host."""
    return "xla_megascale_runtime" in instruction.text


def transfer_price(transfer: Transfer, target: Target) -> OpPrice:
    """Return the price of an exchange from start to end, with the bytes that a device puts on the wire."""
    # A sum over a ring of n slices passes (n - 1) / n of the bytes twice: to add up, and to distribute the result.
    rounds = 2 * (target.slices - 1) / target.slices if transfer.is_sum else 1.0
    sent = max(rounds, 1.0) * transfer.bytes
    return _network_price(START_S + sent / dcn_bytes_per_s(target), sent)._replace(collective=BETWEEN_SLICES)


def dcn_bytes_per_s(target: Target) -> float:
    """Return the rate of a device over the data center's network, one way, bytes per second.

    Example:
        >>> from anytpu.planning.records.target import target_named
        >>> round(dcn_bytes_per_s(target_named("2xv6e-256")) / 1e9, 1)
        4.1
    """
    return ACHIEVED_SHARE * (target.chip.dcn_bytes_per_s or math.nan) * target.chips / target.devices
