"""`Rates`: how fast one device of a target is, as far as published measurements tell.

Idea: datasheets give peaks. What is reached of them is a handful of numbers that all generations share (a share of the
memory's bandwidth, the time an operation needs to get going, ...), and one correction for each generation, which is
drawn towards 1 where little was measured. They are fitted on published measurements by `scripts/calibrate_plan.py`,
which writes `calibration.json`; no number of it knows a model or a batch size.

Rule: nothing here depends on the program.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib import resources
from typing import Any

from anytpu.planning.target import Target


@dataclasses.dataclass(frozen=True)
class Rates:
    """What one device of a target does.

    Attributes:
        clock_hz: the clock at which the compiler's cycles pass.
        flops_per_s: peak of the matrix units for bfloat16.
        hbm_bytes_per_s: peak of the memory; of a core that shares it, what the other core leaves on average.
        link_bytes_per_s: peak of one link to a neighbouring chip, one way.
        excess_share: share that is real of the time by which an operation's cycles exceed what its products and its
            traffic need: the compiler thinks that less overlaps than does.
        factor: time of whatever has cycles over what this gives.
        hbm_share: share of the memory's peak that streaming reaches.
        start_s: time for a streaming operation to get going.
        early_s: by how much earlier than its cycles say an operation that reads from the memory gets going.
        transpose_share: the same of a copy that changes the order of dimensions.
        host_bytes_per_s: what a chip and its host exchange, one way.
        kernel_share: share of the matrix units' peak that the attention kernels of JAX reach, flash and splash.
        product_share: the same of a hand-written kernel of products, the steps of its grid aside.
        grouped_share: the same of the grouped products of JAX (megablox).
        ragged_share: the same of the ragged products that the compiler makes a kernel of.
        grid_step_s: time that each step of a hand-written kernel's grid takes beside them.
        gather_share: share of the links' peak that an all-gather, a reduce-scatter or a permutation reaches.
        reduce_share: the same of an all-reduce.
        exchange_share: the same of an all-to-all.
        hop_s: time from chip to chip.
        collective_start_s: time for a collective to get going: a barrier and the first transfer.
        dispatch_s: time that the host needs for a call, during which the device waits.
    """

    clock_hz: float
    flops_per_s: float
    hbm_bytes_per_s: float
    link_bytes_per_s: float
    excess_share: float
    factor: float
    hbm_share: float
    start_s: float
    early_s: float
    transpose_share: float
    host_bytes_per_s: float
    kernel_share: float
    product_share: float
    grouped_share: float
    ragged_share: float
    grid_step_s: float
    gather_share: float
    reduce_share: float
    exchange_share: float
    hop_s: float
    collective_start_s: float
    dispatch_s: float

    @property
    def streaming_bytes_per_s(self) -> float:
        """What the memory delivers to an operation that streams."""
        return self.hbm_bytes_per_s * self.hbm_share


NARROW = ("s8", "u8", "s4", "u4", "f8e4m3fn", "f8e5m2", "f8e4m3b11fnuz")
"""Types that the matrix units of most chips multiply faster than bfloat16."""


def fast_flops_per_s(target: Target) -> float:
    """Return the peak of one device for `NARROW` types, or that for bfloat16 where it has none of its own."""
    fast = max(target.chip.int8_ops_per_s or 0.0, target.chip.fp8_flops_per_s or 0.0) / target.chip.replicas
    return fast or target.flops_per_s


@functools.lru_cache(maxsize=1)
def calibration() -> dict[str, Any]:
    """Return what was fitted: "shared" and "chips" parameters, "spread" of what they leave, "evidence"."""
    text = resources.files("anytpu.planning.timing").joinpath("calibration.json").read_text()
    return json.loads(text)


def rates_of(target: Target) -> Rates:
    """Return the rates of one device of a target.

    Example:
        >>> from anytpu.planning.target import target_named
        >>> rates_of(target_named("v3-8")).clock_hz
        940000000.0
    """
    return rates_from(target, calibration())


def rates_from(target: Target, fitted: dict[str, Any]) -> Rates:
    """Return the rates that a calibration gives a target, for who fits one."""
    chip = target.chip
    own = fitted["chips"].get(chip.name, {})
    values = {**fitted["shared"], **own}
    values = {name: number * own.get(f"{name}_over_shared", 1.0) for name, number in values.items()}
    names = {field.name for field in dataclasses.fields(Rates)}
    # The other core of the chip does not use the memory all the time.
    shared = fitted["shared"]["shared_memory_gain"] if target.shares_memory else 1.0
    peaks = {
        "clock_hz": chip.clock_hz,
        "flops_per_s": (chip.bf16_flops_per_s or 0.0) * target.chips / target.devices,
        "hbm_bytes_per_s": target.hbm_bytes_per_s * shared,
        "link_bytes_per_s": chip.ici_link_bytes_per_s or 1e10,
    }
    return Rates(**{**peaks, **{name: value for name, value in values.items() if name in names}})
