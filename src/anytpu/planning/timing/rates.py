"""`Rates`: the speed of one device of a target, from published measurements.

Idea: datasheets give peaks. The reached part follows from a few parameters that all generations share, such as a share
of the memory's bandwidth or an operation's latency. Each generation has one correction. The correction is shrunk
towards 1 where little was measured. `scripts/calibrate_plan.py` fits them on published measurements and writes
`calibration.json`; none of the parameters depends on a model or a batch size.

Rule: nothing here depends on the program.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from importlib import resources
from typing import Any

from anytpu.planning.records.target import Target


@dataclasses.dataclass(frozen=True)
class Rates:
    """The speed of one device of a target.

    Attributes:
        clock_hz: clock of the compiler's cycles, Hz.
        flops_per_s: peak of the matrix units for bfloat16.
        hbm_bytes_per_s: peak of the memory; for a core that shares it, the part that the other core leaves on average.
        link_bytes_per_s: peak of one link to a neighbouring chip, one way.
        excess_share: real share of the time by which an operation's cycles exceed the needs of its products and its
            traffic: the compiler underestimates overlap.
        streamed_excess_share: the same for a product of few rows, which streams its weight.
        row_share: real share of the cycles of a product of one row, if one vector instruction starts in a cycle.
        said_share: share of the peak that products of large matrices reach by the compiler's cycles: the mean of eight.
        factor: ratio of the time of an operation with cycles to the time from these parameters.
        hbm_share: share of the memory's peak that streaming reaches.
        start_s: latency of a streaming operation, seconds.
        early_s: time by which an operation that reads from the memory starts earlier than its cycles say, seconds.
        transpose_share: share of the memory's peak that a copy reaches if it changes the order of dimensions.
        host_bytes_per_s: rate between a chip and its host, one way.
        kernel_share: share of the matrix units' peak that the attention kernels of JAX reach, flash and splash.
        product_share: the same for a hand-written kernel of products, without the steps of its grid.
        grouped_share: the same for the grouped products of JAX (megablox).
        ragged_share: the same for ragged products that the compiler turns into a kernel.
        grid_step_s: extra time of each step of a hand-written kernel's grid, seconds.
        gather_share: share of the links' peak that an all-gather, a reduce-scatter or a permutation reaches.
        reduce_share: the same for an all-reduce.
        exchange_share: the same for an all-to-all.
        hop_s: latency from chip to chip, seconds.
        collective_start_s: latency of a collective, seconds: a barrier and the first transfer.
        small_start_s: the same for an all-reduce of a small array over few chips.
        dispatch_s: time of the host for a call, during which the device waits, seconds.
    """

    clock_hz: float
    flops_per_s: float
    hbm_bytes_per_s: float
    link_bytes_per_s: float
    excess_share: float
    said_share: float
    streamed_excess_share: float
    row_share: float
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
    small_start_s: float
    dispatch_s: float

    @property
    def streaming_bytes_per_s(self) -> float:
        """Rate of the memory for an operation that streams."""
        return self.hbm_bytes_per_s * self.hbm_share


NARROW = ("s8", "u8", "s4", "u4", "f8e4m3fn", "f8e5m2", "f8e4m3b11fnuz")
"""Types that the matrix units of most chips multiply faster than bfloat16."""


def fast_flops_per_s(target: Target) -> float:
    """Return the peak of one device for `NARROW` types, or for bfloat16 if it has no separate one."""
    fast = max(target.chip.int8_ops_per_s or 0.0, target.chip.fp8_flops_per_s or 0.0) / target.chip.replicas
    return fast or target.flops_per_s


@functools.lru_cache(maxsize=1)
def calibration() -> dict[str, Any]:
    """Return the fitted calibration: "shared" and "chips" parameters, "spread" of the residuals, "evidence"."""
    text = resources.files("anytpu.planning.timing").joinpath("calibration.json").read_text()
    return json.loads(text)


def rates_of(target: Target) -> Rates:
    """Return the rates of one device of a target.

    Example:
        >>> from anytpu.planning.records.target import target_named
        >>> rates_of(target_named("v3-8")).clock_hz
        940000000.0
    """
    return rates_from(target, calibration())


def rates_from(target: Target, fitted: dict[str, Any]) -> Rates:
    """Return a target's rates under a calibration, for scripts that fit one."""
    chip = target.chip
    own = fitted["chips"].get(chip.name, {})
    values = {**fitted["shared"], **own}
    # A chip has a value of its own, or a factor on the shared one.
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
