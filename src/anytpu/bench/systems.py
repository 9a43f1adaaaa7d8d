"""The systems of this machine that run a job: one virtual core, eight of them, its GPU, its TPU."""

from __future__ import annotations

import dataclasses

from anytpu.system.cores import Address
from anytpu.system.probes import Found, Reason, probe_gpu, probe_tpu, virtual_address


@dataclasses.dataclass(frozen=True)
class LocalSystem:
    """A system of this machine.

    Attributes:
        name: the system's name in a report.
        address: the address that opens it.
    """

    name: str
    address: Address


def local_systems() -> tuple[tuple[LocalSystem, ...], tuple[Reason, ...]]:
    """Return the systems of this machine, the virtual ones first, and the reason why each other one is missing."""
    eight = virtual_address(None)
    systems = [
        LocalSystem("1 virtual core", virtual_address(1)),
        LocalSystem(f"{eight.cores} virtual cores", eight),
    ]
    reasons = []
    for name, probe in (("GPU", probe_gpu), ("TPU", probe_tpu)):
        answer = probe(None)
        if isinstance(answer, Found):
            systems.append(LocalSystem(_counted(name, answer.address.cores or 1), answer.address))
        else:
            reasons.append(answer)
    return tuple(systems), tuple(reasons)


def _counted(name: str, count: int) -> str:
    thing = "TPU core" if name == "TPU" else name
    return f"{count} {thing}{'s' * (count > 1)}"
