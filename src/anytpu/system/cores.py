"""`Core`, `LogicalDevice` and `Address`: what a TPU system is made of, before anybody has opened it.

Rule: a virtual core says that it is virtual, in its `repr` and wherever it is listed.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

Kind = Literal["virtual", "local", "worker", "twin"]
"""How a system is reached: made of the CPU, this machine's accelerators, a worker process, the twin of the tests."""

Numerics = Literal["machine", "tpu"]
"""How float32 products are computed: as this machine's compiler does, or rounded as a TPU's matrix units round them."""


@dataclasses.dataclass(frozen=True)
class Core:
    """One core of a TPU system: one replica runs on it.

    Attributes:
        index: its number among the cores of the system, from 0.
        platform: "tpu", "gpu" or "cpu": what really computes.
        virtual: True when the core is simulated on another kind of device.
        chip_coordinates: (x, y, z) of its chip in the topology.
        core_on_chip: its number on that chip.
        host: the number of the host that it hangs on.
        device_id: the number of the JAX device that computes for it, or None before the system is opened.
        memory_bytes: memory that this core may use, or None when it is not known.
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
    """A device as `list_logical_devices` shows it.

    Attributes:
        name: its full name, "/job:worker/replica:0/task:0/device:TPU:3".
        device_type: "TPU", "GPU" or "CPU".
        virtual: True when it is simulated on another kind of device.
    """

    name: str
    device_type: str
    virtual: bool = False


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a TPU system is found; what `engine.open` opens.

    Attributes:
        kind: how it is reached; the name of the backend's entry point.
        cores: the number of cores, or None for all that are there.
        shape: the slice that it has or stands in for, "v2-8", or None.
        target: "host:port" of a worker, else None.
        numerics: how float32 products are computed there.
    """

    kind: Kind
    cores: int | None = None
    shape: str | None = None
    target: str | None = None
    numerics: Numerics = "machine"
