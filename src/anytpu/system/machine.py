"""This machine's accelerators, as JAX has them, and the topology of whatever an address names.

Rule: JAX is imported inside the functions, after `prepare_jax`, and only where there is something for it to start.
"""

from __future__ import annotations

import contextlib
from typing import Any

from anytpu import _env
from anytpu.errors import BackendError
from anytpu.system.chips import CHIPS, Chip, chip_of_kind
from anytpu.system.cores import Address, Core
from anytpu.system.topologies import Bounds, Topology, row_of_cores, slice_sizes, topology_of

DEFAULT_SHAPE = "v2-8"
"""The slice that a virtual TPU has when nothing else is asked for: the free TPU of the notebooks."""


def devices_of(platform: str | None) -> list[Any]:
    """Return JAX's devices of a platform, all hosts' in a job of many; JAX starts if it has not.

    Args:
        platform: "tpu", "gpu", "cpu", or None for the platform that JAX prefers.

    Raises:
        SettingError: JAX, or XLA, cannot start with the environment as it is.
        RuntimeError: JAX has no such platform, or it failed to start.
    """
    _env.prepare_jax()
    _env.check_jax_settings()
    import jax

    return list(jax.devices(platform))


def local_devices() -> list[Any]:
    """Return this machine's TPU cores, else its GPUs, else what JAX has: its host devices."""
    devices = devices_of(None)
    if devices[0].platform != "cpu":
        return devices
    for platform in ("tpu", "gpu"):
        with contextlib.suppress(RuntimeError):
            return devices_of(platform)
    return devices


def topology_at(address: Address) -> Topology:
    """Return the topology of the system at an address. For a local one JAX starts.

    Raises:
        BackendError: it is not reachable from here.
    """
    if address.kind == "local":
        return topology_of_devices(local_devices()[: address.cores])
    if address.kind == "worker":
        raise BackendError(worker_message(address.target or ""))
    if address.shape is not None:
        return topology_of(address.shape)
    return row_of_cores(address.cores or 8, kind=address.kind)


def worker_message(target: str) -> str:
    """Return what to say of a worker's address: that this release cannot open it, and what it can."""
    return (
        f"{target!r} is the address of an anytpu worker; workers come with a later release of anytpu. "
        'Until then, connect("virtual") gives 8 virtual cores on this machine.'
    )


def topology_of_devices(devices: list[Any]) -> Topology:
    """Return the topology that JAX devices make up.

    Host CPU devices count as virtual cores: that is what a test with several of them on one machine has.

    Args:
        devices: JAX devices of one platform, at least one.
    """
    first, chip = devices[0], chip_of_kind(devices[0].device_kind)
    places = [_place(index, device) for index, device in enumerate(devices)]
    bounds = _bounds([place for place, _ in places])
    cores = tuple(
        Core(
            index,
            device.platform,
            virtual=device.platform == "cpu",
            chip_coordinates=place,
            core_on_chip=core,
            host=device.process_index,
            device_id=device.id,
            memory_bytes=_memory_bytes(device),
        )
        for index, (device, (place, core)) in enumerate(zip(devices, places, strict=True))
    )
    per_chip = max(core for _, core in places) + 1
    name = _slice_name(chip, bounds, len(devices)) or f"{len(devices)} x {first.device_kind}"
    return Topology(name, chip, bounds, per_chip, cores)


def _place(index: int, device: Any) -> tuple[Bounds, int]:
    """Return a device's chip and core; only a TPU device has them, any other is a chip of its own in a row."""
    coordinates = getattr(device, "coords", None)
    if coordinates is None:
        return (index, 0, 0), 0
    x, y, z = coordinates
    return (x, y, z), device.core_on_chip


def _bounds(places: list[Bounds]) -> Bounds:
    x, y, z = (max(axis) - min(axis) + 1 for axis in zip(*places, strict=True))
    return x, y, z


def _slice_name(chip: Chip | None, bounds: Bounds, devices: int) -> str | None:
    """Return the name of the slice that has these bounds, or None."""
    if chip is None or chip.torus_rank == 0 or chip.name not in CHIPS:
        return None
    whole = [number for number, box in slice_sizes(chip.name).items() if sorted(box) == sorted(bounds)]
    fits = whole and len(topology_of(f"{chip.name}-{whole[0]}").cores) == devices
    return f"{chip.name}-{whole[0]}" if fits else None


def _memory_bytes(device: Any) -> int | None:
    """Return the memory that JAX may use on a device; unknown for the CPU and for devices of other hosts."""
    if device.platform == "cpu" or device.process_index != device.client.process_index():
        return None
    return (device.memory_stats() or {}).get("bytes_limit")
