"""`Target`: a slice of a TPU pod as the compiler knows it, and what one of its devices can do.

Idea: the clouds name a slice "v3-8", the compiler "v3:2x2"; what JAX calls a device is a core on v2, v3 and v7x, and a
chip of one or two cores elsewhere. A target holds all of these beside each other.

Rule: all rates are per device, derived from the chip's datasheet in `system/chips.py`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from anytpu.system.chips import Chip
from anytpu.system.topologies import Bounds, topology_of

# What libtpu 0.0.51 calls each chip in the name of a topology.
_LIBTPU_NAMES = {"v7x": "tpu7x"}


@dataclasses.dataclass(frozen=True)
class Target:
    """A system that a program is planned for.

    Attributes:
        name: "v3-8".
        chip: its chip; None for a GPU.
        devices: what JAX would see: cores of v2, v3 and v7x, chips of the others.
        chips: chips of the slice.
        hosts: machines that it hangs on.
        chip_bounds: chips along (x, y, z).
        compiler_name: what the compiler calls it: "v3:2x2".
        chip_config: "megacore" where the two cores of a chip are one device and the compiler must be told, else None.
        aliases: other names: "v5litepod-8".
        device_kind: what JAX calls a device: "TPU v3".
    """

    name: str
    chip: Chip | None
    devices: int
    chips: int
    hosts: int
    chip_bounds: Bounds
    compiler_name: str
    chip_config: str | None = None
    aliases: tuple[str, ...] = ()
    device_kind: str = ""

    @property
    def compiler_arguments(self) -> dict[str, Any]:
        """What the compiler is told besides the name: arguments of `jax.experimental.topologies.get_topology_desc`."""
        return {} if self.chip_config is None else {"chip_config_name": self.chip_config}

    @property
    def flops_per_s(self) -> float:
        """Peak bfloat16 rate of one device."""
        assert self.chip is not None and self.chip.bf16_flops_per_s is not None
        return self.chip.bf16_flops_per_s / self.chip.replicas

    @property
    def hbm_bytes_per_s(self) -> float:
        """Memory bandwidth of one device."""
        assert self.chip is not None
        return self.chip.hbm_bytes_per_s / self.chip.replicas

    def to_record(self) -> dict[str, Any]:
        """Return everything as what JSON has."""
        return {
            "name": self.name,
            "chip": self.chip.name if self.chip else None,
            "devices": self.devices,
            "chips": self.chips,
            "hosts": self.hosts,
            "topology": self.compiler_name,
            "device_kind": self.device_kind,
        }


def target_named(name: str) -> Target:
    """Return the target of a slice's name.

    Raises:
        UnknownTPUError: no such slice exists; the message names the nearest.

    Example:
        >>> target_named("v3-8").compiler_name, target_named("v4-8").devices
        ('v3:2x2', 4)
    """
    topology = topology_of(name)
    chip, bounds = topology.chip, topology.chip_bounds
    assert chip is not None
    sides = bounds if chip.torus_rank == 3 else bounds[:2]
    return Target(
        name=topology.name,
        chip=chip,
        devices=len(topology.cores),
        chips=bounds[0] * bounds[1] * bounds[2],
        hosts=topology.num_tasks,
        chip_bounds=bounds,
        compiler_name=f"{_LIBTPU_NAMES.get(chip.name, chip.name)}:{'x'.join(map(str, sides))}",
        chip_config="megacore" if chip.is_megacore else None,
        device_kind=chip.device_kinds[0],
    )
