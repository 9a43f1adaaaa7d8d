"""`Core`, `LogicalDevice` and `Address`: descriptions of a TPU system that is not opened yet.

Rule: a virtual core is marked as virtual in its `repr` and in every listing.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from anytpu.system.workers import WorkerAddress

Kind = Literal["virtual", "local", "twin", "grpc"]
"""The kinds of system: simulated on the CPU, this machine's accelerators, the tests' in-memory twin, a worker."""

Numerics = Literal["machine", "tpu"]
"""The rounding of float32 products: that of this machine's compiler, or that of a TPU's matrix units."""


@dataclasses.dataclass(frozen=True)
class Core:
    """One core of a TPU system; it runs one replica.

    Attributes:
        index: index in the system's list of cores, from 0.
        platform: "tpu", "gpu" or "cpu": the kind of device that computes.
        virtual: True when the core is simulated on another kind of device.
        chip_coordinates: (x, y, z) of its chip in the topology.
        core_on_chip: index of the core on that chip, from 0.
        host: index of the host that the core is attached to, from 0.
        device_id: id of the JAX device that runs the core, or None before the system is opened.
        memory_bytes: memory of this core, for a virtual core that of the real one; None if it is unknown.
    """

    index: int
    platform: str
    virtual: bool
    chip_coordinates: tuple[int, int, int] = (0, 0, 0)
    core_on_chip: int = 0
    host: int = 0
    device_id: int | None = None
    memory_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class LogicalDevice:
    """A device in the list of `list_logical_devices`.

    Attributes:
        name: full name, "/job:worker/replica:0/task:0/device:TPU:3".
        device_type: "TPU", "GPU" or "CPU".
        virtual: True when the device is simulated on another kind of device.
    """

    name: str
    device_type: str
    virtual: bool = False


@dataclasses.dataclass(frozen=True)
class Address:
    """Address of a TPU system, the argument of `engine.open`.

    Attributes:
        kind: kind of the system; also the name of the backend's entry point.
        cores: number of cores, or None for all existing ones.
        shape: name of the real or simulated slice, "v2-8", or None.
        numerics: the rounding of float32 products.
        worker: address of the worker, for kind "grpc"; otherwise None.
    """

    kind: Kind
    cores: int | None = None
    shape: str | None = None
    numerics: Numerics = "machine"
    worker: WorkerAddress | None = None
