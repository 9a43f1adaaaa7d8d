"""`limit_bytes`: the part of a device's memory that the TPU compiler lets a program use.

Idea: part of the memory is reserved for the system, and no document says how much. It was found by trial. A program
that takes one array and returns another of the same size compiles up to a limit and not beyond.

Source: libtpu 0.0.51, `x * 2 + 1` over all devices of a slice of one host, argument and result together, bisected to 1
MiB. The comment beside each number quotes the compiler. Its figure is rounded to 0.01 GiB, and it needs some MiB
itself.
"""

from __future__ import annotations

from anytpu.errors import PlanError
from anytpu.planning.target import Target
from anytpu.units import MIB

_LIMITS_BYTES = {
    "v2": 7661 * MIB,  # 7.48G, of a core
    "v3": 15853 * MIB,  # 15.48G, of a core
    "v4": 15614 * MIB,  # 15.25G, of a core
    "v4 megacore": 31484 * MIB,  # 30.75G
    "v5e": 16125 * MIB,  # 15.75G
    "v5p": 98040 * MIB,  # 95.74G
    "v6e": 31995 * MIB,  # 31.25G
    "v7x": 97019 * MIB,  # 94.75G, of a core
}


def limit_bytes(target: Target) -> int:
    """Return the memory of one device that the TPU compiler lets a program use, bytes.

    Raises:
        PlanError: the limit of this chip is not known.
    """
    chip = target.chip.name
    name = "v4 megacore" if chip == "v4" and target.chip_config == "megacore" else chip
    if name not in _LIMITS_BYTES:
        known = ", ".join(sorted({key.split()[0] for key in _LIMITS_BYTES}))
        raise PlanError(f"what the TPU compiler lets a program use of a {chip} is not known; it is for {known}")
    return _LIMITS_BYTES[name]
