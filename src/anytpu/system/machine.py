"""This machine's accelerators in JAX, and the topology of the system at an address.

Rule: JAX is imported inside the functions, after `prepare_jax`, and only if it has a device to start.
"""

from __future__ import annotations

import contextlib
from typing import Any

from anytpu import _by_name, _env
from anytpu.system.chips import CHIPS, Chip, chip_of_kind
from anytpu.system.cores import Address, Core
from anytpu.system.topologies import Bounds, Topology, row_of_cores, slice_sizes, topology_of

DEFAULT_SHAPE = "v2-8"
"""The default slice of a virtual TPU: that of the free TPU of notebook services."""


def devices_of(platform: str | None) -> list[Any]:
    """Return JAX's devices of a platform, of all hosts of the job. Starts JAX if necessary.

    Args:
        platform: "tpu", "gpu", "cpu", or None for the platform that JAX prefers.

    Raises:
        SettingError: JAX, or XLA, cannot start in this environment.
        RuntimeError: JAX has no such platform, or it failed to start.
    """
    _env.prepare_jax()
    _env.check_jax_settings()
    import jax

    return list(jax.devices(platform))


def local_devices() -> list[Any]:
    """Return this machine's TPU cores, or else its GPUs, or else JAX's host devices."""
    devices = devices_of(None)
    if devices[0].platform != "cpu":
        return devices
    for platform in ("tpu", "gpu"):
        with contextlib.suppress(RuntimeError):
            return devices_of(platform)
    return devices


def topology_at(address: Address) -> Topology:
    """Return the topology of the system at an address. For a local system this starts JAX; for a worker it connects.

    Raises:
        WorkerError: the worker cannot be reached, refuses this client, or has fewer cores than the address names.
    """
    if address.kind == "grpc":
        return _by_name.load("worker topology")(address)
    if address.kind == "local":
        return topology_of_devices(local_devices()[: address.cores])
    if address.shape is not None:
        return topology_of(address.shape)
    return row_of_cores(address.cores or 8, kind=address.kind)


def topology_of_devices(devices: list[Any]) -> Topology:
    """Return the topology of JAX devices.

    Host CPU devices are virtual cores: tests force several of them on one machine.

    Args:
        devices: JAX devices of one platform, at least one.
    """
    first, chip = devices[0], chip_of_kind(devices[0].device_kind)
    positions = [_position(index, device) for index, device in enumerate(devices)]
    bounds = _bounds([coordinates for coordinates, _ in positions])
    cores = tuple(
        Core(
            index,
            device.platform,
            virtual=device.platform == "cpu",
            chip_coordinates=coordinates,
            core_on_chip=core,
            host=device.process_index,
            device_id=device.id,
            memory_bytes=_memory_bytes(device),
        )
        for index, (device, (coordinates, core)) in enumerate(zip(devices, positions, strict=True))
    )
    per_chip = max(core for _, core in positions) + 1
    name = _slice_name(chip, bounds, len(devices)) or f"{len(devices)} x {first.device_kind}"
    return Topology(name, chip, bounds, per_chip, cores)


def _position(index: int, device: Any) -> tuple[Bounds, int]:
    """Return the chip coordinates and the core index of a device.

    Only the coordinates of a TPU are positions of chips in a network; a GPU has others. Other devices form a row of
    chips with one core each.
    """
    if device.platform != "tpu":
        return (index, 0, 0), 0
    x, y, z = device.coords
    return (x, y, z), device.core_on_chip


def _bounds(positions: list[Bounds]) -> Bounds:
    x, y, z = (max(axis) - min(axis) + 1 for axis in zip(*positions, strict=True))
    return x, y, z


def _slice_name(chip: Chip | None, bounds: Bounds, devices: int) -> str | None:
    """Return the name of the slice with these bounds and this number of devices, or None."""
    if chip is None or chip.torus_rank == 0 or chip.name not in CHIPS:
        return None
    sizes = [size for size, box in slice_sizes(chip.name).items() if sorted(box) == sorted(bounds)]
    is_whole_slice = sizes and len(topology_of(f"{chip.name}-{sizes[0]}").cores) == devices
    return f"{chip.name}-{sizes[0]}" if is_whole_slice else None


def _memory_bytes(device: Any) -> int | None:
    """Return the memory available to JAX on a device; None for the CPU and for devices of other hosts."""
    if device.platform == "cpu" or device.process_index != device.client.process_index():
        return None
    return (device.memory_stats() or {}).get("bytes_limit")
