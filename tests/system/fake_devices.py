"""Stand-ins for JAX devices, with what anytpu reads of one."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Client:
    process: int = 0

    def process_index(self) -> int:
        return self.process


@dataclasses.dataclass
class GPU:
    """As a JAX device of an NVIDIA GPU: its `coords` are no position of a chip, and it has no `core_on_chip`."""

    id: int
    platform: str = "gpu"
    device_kind: str = "NVIDIA H200"
    process_index: int = 0
    coords: list[int] = dataclasses.field(default_factory=lambda: [0, 0, 0])
    client: Client = dataclasses.field(default_factory=Client)

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": 1000 + self.id}


@dataclasses.dataclass
class TPU(GPU):
    """As a JAX device of a TPU."""

    platform: str = "tpu"
    device_kind: str = "TPU v3"
    core_on_chip: int = 0
