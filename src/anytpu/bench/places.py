"""The systems of this machine, each of which runs a job: one virtual core, eight of them, its GPU, its TPU."""

from __future__ import annotations

import dataclasses

from anytpu.system.cores import Address
from anytpu.system.probes import Found, Reason, probe_gpu, probe_tpu, virtual_address


@dataclasses.dataclass(frozen=True)
class Place:
    """A system to run a job on.

    Attributes:
        name: what it is called in a report.
        address: what it is opened by.
    """

    name: str
    address: Address


def places_here() -> tuple[tuple[Place, ...], tuple[Reason, ...]]:
    """Return the systems of this machine, the virtual ones first, and why it has no others."""
    eight = virtual_address(None)
    places = [
        Place("1 virtual core", virtual_address(1)),
        Place(f"{eight.cores} virtual cores", eight),
    ]
    reasons = []
    for name, probe in (("GPU", probe_gpu), ("TPU", probe_tpu)):
        answer = probe(None)
        if isinstance(answer, Found):
            places.append(Place(_counted(name, answer.address.cores or 1), answer.address))
        else:
            reasons.append(answer)
    return tuple(places), tuple(reasons)


def _counted(name: str, count: int) -> str:
    thing = "TPU core" if name == "TPU" else name
    return f"{count} {thing}{'s' * (count > 1)}"
