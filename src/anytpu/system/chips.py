"""The TPU chips, one frozen record each, v1 to v7x.

Idea: `chips.toml` is the only source of chip figures, such as core counts, memory sizes and rates. Each has its source.
"""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from anytpu.errors import UnknownTPUError
from anytpu.units import GIB, MIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """Datasheet of one TPU chip generation.

    Attributes:
        name: generation name, such as "v2"; the part of a slice's name before the dash.
        device_kinds: names of the chip's devices in JAX.
        cores: number of TensorCores on the chip.
        is_megacore: True when JAX sees the chip's cores as one device, so that one replica runs on the whole chip.
        mxus_per_core: number of matrix units in a core.
        mxu_side: number of rows, and of columns, of a matrix unit. From v6e on a unit computes two products of this
            size in a cycle.
        clock_hz: clock frequency.
        bf16_flops_per_s: peak rate for bfloat16, or None if the chip has no floating point.
        int8_ops_per_s: peak rate for 8-bit integers; None if it is no faster than bfloat16, or is not stated.
        fp8_flops_per_s: peak rate for 8-bit floating point, or None if not supported.
        hbm_bytes: capacity of the HBM (v1: of the DDR3 weight memory).
        hbm_bytes_per_s: bandwidth of that memory.
        vmem_bytes_per_core: on-chip memory of a core, read by the vector and matrix units (v1: the unified buffer).
        ici_link_bytes_per_s: bandwidth of one link in one direction, or None.
        dcn_bytes_per_s: a chip's share of its host's network cards, one way, or None.
        torus_rank: number of dimensions of the network between chips, 2 or 3, or 0 if there is none.
        pod_chips: number of chips in the largest pod, or 1.
        usd_per_chip_hour: price on demand, or None if it is not sold or not listed.
    """

    name: str
    device_kinds: tuple[str, ...]
    cores: int
    is_megacore: bool
    mxus_per_core: int
    mxu_side: int
    clock_hz: float
    bf16_flops_per_s: float | None = None
    int8_ops_per_s: float | None = None
    fp8_flops_per_s: float | None = None
    hbm_bytes: int
    hbm_bytes_per_s: float
    vmem_bytes_per_core: int
    ici_link_bytes_per_s: float | None = None
    dcn_bytes_per_s: float | None = None
    torus_rank: int
    pod_chips: int
    usd_per_chip_hour: float | None = None

    @property
    def replicas(self) -> int:
        """Number of replicas on one chip: the number of cores, or 1 for a megacore."""
        return 1 if self.is_megacore else self.cores


def _chip(name: str, fields: dict[str, Any]) -> Chip:
    """Return the record of a table in chips.toml: memories are in GiB and MiB there."""
    hbm_bytes, vmem_bytes = fields.pop("hbm_gib") * GIB, fields.pop("vmem_mib_per_core") * MIB
    kinds = tuple(fields.pop("device_kinds"))
    return Chip(name=name, device_kinds=kinds, hbm_bytes=hbm_bytes, vmem_bytes_per_core=vmem_bytes, **fields)


_TABLES = tomllib.loads(Path(__file__).with_name("chips.toml").read_text(encoding="utf-8"))

CHIPS: dict[str, Chip] = {name: _chip(name, fields) for name, fields in _TABLES.items()}
"""The chips by name, oldest first."""


def chip_named(name: str) -> Chip:
    """Return the chip with this name.

    Raises:
        UnknownTPUError: no chip has this name.

    Example:
        >>> chip_named("v2").cores
        2
    """
    if name not in CHIPS:
        raise UnknownTPUError(f"{name!r} is not a TPU chip; the chips are {', '.join(CHIPS)}")
    return CHIPS[name]


def chip_of_kind(device_kind: str) -> Chip | None:
    """Return the chip with JAX's `device_kind` ("TPU v5 lite"), or None if it is not a known TPU."""
    return next((chip for chip in CHIPS.values() if device_kind in chip.device_kinds), None)
