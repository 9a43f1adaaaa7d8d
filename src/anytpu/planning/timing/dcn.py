"""`transfer_of`: the data that a device exchanges with other slices, over the data center's network.

Idea: the compiler reduces within each slice first, so every device has a share. Each device hands its share to its host
("send") and takes the result back ("recv"). The host's runtime exchanges it with the hosts of the other slices. So the
bytes of a "send" are those that a device puts on the wire, once more for every slice that a ring passes.

Rule: peaks are those of the hosts' network cards, shared by their chips. Only a share is reached: the published sum of
606 MB over two slices of v6e-256 ran at 4.1 GB/s, a third of 12.5. With this, float32 gradients of 16 billion weights
add 0.24 s to a step of 10.1 s on 2 x v5e-256. 0.26 s were published.

Source: https://github.com/AI-Hypercomputer/tpu-recipes (microbenchmarks/trillium/collectives),
https://github.com/AI-Hypercomputer/maxtext (configs/v5e).
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from anytpu.planning.hlo import Instruction
from anytpu.planning.target import Target

PEAK_BYTES_PER_S = {
    "v2": 3.1e9,  # (unchecked): 100 Gbit/s a host of four chips
    "v3": 3.1e9,  # (unchecked): the same
    "v4": 3.1e9,  # (unchecked): the same
    "v5e": 3.1e9,  # https://cloud.google.com/tpu/docs/v5e: 6.4 Tbit/s a pod of 256
    "v5p": 6.25e9,  # https://cloud.google.com/tpu/docs/v5p: 50 Gbit/s a chip
    "v6e": 12.5e9,  # https://cloud.google.com/tpu/docs/v6e: 25.6 Tbit/s a pod of 256
    "v7x": 12.5e9,  # (unchecked): 100 Gbit/s a chip
}
"""A chip's share of its host's network cards, one way, bytes per second."""

REACHED = 0.33
"""Share of the peak that an exchange reaches: 4.1 of 12.5 GB/s on two slices of v6e-256."""

START_S = 1e-4
"""Latency of an exchange, seconds, a guess: two copies between chip and host, and a message between hosts."""

_RENDEZVOUS = re.compile(r'_xla_host_transfer_rendezvous="?([\w.\-]+)')
_KIND = re.compile(r'_xla_megascale_transfer_type="?(\w+)')


class Transfer(NamedTuple):
    """One half of an exchange between slices.

    Attributes:
        name: name that both halves share: "all-reduce.9_0".
        way: "send" or "recv".
        is_sum: whether the slices add up what they send.
        bytes: bytes that a device sends or receives, padding included.
    """

    name: str
    way: Literal["send", "recv"]
    is_sum: bool
    bytes: float


def transfer_of(instruction: Instruction) -> Transfer | None:
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


def is_between_slices(instruction: Instruction) -> bool:
    """Return whether a send, a recv, or a wait for one, is for another slice rather than for the host."""
    return "xla_megascale_runtime" in instruction.text


def transfer_s(transfer: Transfer, target: Target) -> tuple[float, float]:
    """Return seconds from start to end of an exchange, and the bytes that a device puts on the wire."""
    rounds = 2 * (target.slices - 1) / target.slices if transfer.is_sum else 1.0
    sent = max(rounds, 1.0) * transfer.bytes
    return START_S + sent / dcn_bytes_per_s(target), sent


def dcn_bytes_per_s(target: Target) -> float:
    """Return the rate of a device over the data center's network, one way, bytes per second.

    Example:
        >>> from anytpu.planning.target import target_named
        >>> round(dcn_bytes_per_s(target_named("2xv6e-256")) / 1e9, 1)
        4.1
    """
    return REACHED * PEAK_BYTES_PER_S.get(target.chip.name, 3.1e9) * target.chips / target.devices
