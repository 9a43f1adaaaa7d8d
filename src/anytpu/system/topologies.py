"""The existing slices of TPU chips, and the coordinates of their cores.

Idea: a slice is a box of chips along x, y and z, divided into one block of chips per host. Its name states its size.
The size determines the coordinates of each core, the host of each core, and the number of replicas.

Rule: the number in a name follows the cloud's convention. It counts TensorCores for v2, v3, v4, v5p and v7x ("v2-8" is
4 chips of 2 cores), and chips for v5e and v6e. A replica is one JAX device. On v4 and v5p the two cores of a chip are
one megacore, so "v4-8" has 4 replicas, not 8. Caution: for "v4:2x2x1" without the chip configuration "megacore", the
TPU compiler returns 8 single cores, and no real v4 job runs on these. Coordinates, the order of cores (host by host, x
fastest) and the hosts' blocks are those of libtpu 0.0.51 for the same slice.

Sources of the sizes:

- the pages of v4, v5e, v5p, v6e and tpu7x under https://cloud.google.com/tpu/docs;
- SkyPilot's table of TPU pods for v2 and v3;
- `accelerator_to_spec_map.py` of AI-Hypercomputer/maxtext for the boxes of the large 3D slices.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from typing import TYPE_CHECKING, Literal

from anytpu.errors import UnknownTPUError
from anytpu.system.chips import CHIPS, Chip
from anytpu.system.cores import Core

if TYPE_CHECKING:
    import numpy as np

Bounds = tuple[int, int, int]
"""Number of chips along x, y and z."""

ALIASES = {"v5litepod": "v5e", "tpu7x": "v7x"}
"""Other names of chips in slice names, and the chip's name."""

_UNITS: dict[str, Literal["TensorCores", "chips"]] = {
    **dict.fromkeys(("v2", "v3", "v4", "v5p", "v7x"), "TensorCores"),
    **dict.fromkeys(("v5e", "v6e"), "chips"),
}
SLICED = tuple(_UNITS)
"""The chips that slices are made of."""

_PLANES = {
    "v2": ((2, 2), (4, 4), (8, 8), (8, 16), (16, 16)),
    "v3": ((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16), (16, 32), (32, 32)),
    "v5e": ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)),
    "v6e": ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16)),
}
_BELOW_ONE_CUBE: tuple[Bounds, ...] = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))
# Allowed numbers of 4 x 4 x 4 chip cubes in a slice: v4's pod has 64, v5p's largest job 96; v7x lists four more.
_CUBES = {"v4": range(1, 65), "v5p": range(1, 97), "v7x": (*range(1, 97), 108, 128, 140, 144)}
_MAX_SIDE_CUBES = 64


@dataclasses.dataclass(frozen=True, repr=False)
class Topology:
    """The cores of a system and their arrangement: a TPU slice, a machine's accelerators, or a row of virtual cores.

    Attributes:
        name: name of the slice, "v2-8"; if it is not a slice, a description such as "3 virtual cores".
        chip: the chip, or None when it is not a TPU.
        chip_bounds: number of chips along (x, y, z).
        cores_per_chip: number of JAX devices on one chip, each a replica: 1 on v4, where two cores act as one.
        cores: the cores, host by host, one for each replica.
    """

    name: str
    chip: Chip | None
    chip_bounds: Bounds
    cores_per_chip: int
    cores: tuple[Core, ...]

    @property
    def num_tasks(self) -> int:
        """Number of hosts."""
        return len({core.host for core in self.cores})

    @property
    def num_tpus_per_task(self) -> int:
        """Number of cores on one host."""
        return len(self.cores) // self.num_tasks

    @property
    def mesh_shape(self) -> tuple[int, int, int, int]:
        """Number of chips along x, y and z, and number of cores on a chip."""
        return (*self.chip_bounds, self.cores_per_chip)

    @property
    def device_coordinates(self) -> np.ndarray:
        """Coordinates (x, y, z, core) of each core, by host: an integer array `(num_tasks, num_tpus_per_task, 4)`."""
        import numpy as np

        coordinates = [(*core.chip_coordinates, core.core_on_chip) for core in self.cores]
        return np.array(coordinates, np.int32).reshape(self.num_tasks, self.num_tpus_per_task, 4)

    @property
    def is_virtual(self) -> bool:
        """True when the cores are simulated on another kind of device."""
        return any(core.virtual for core in self.cores)

    def __repr__(self) -> str:
        virtual = "virtual " if self.is_virtual else ""
        chips = "x".join(map(str, self.chip_bounds))
        count, hosts = len(self.cores), self.num_tasks
        return (
            f"Topology({self.name!r}: {count} {virtual}core{'s' * (count > 1)}, {chips} chips, "
            f"{hosts} host{'s' * (hosts > 1)})"
        )


def topology_of(name: str) -> Topology:
    """Return the topology of the slice with this name, with virtual cores at the coordinates of the real ones.

    Args:
        name: such as "v2-8", "v3-32", "v5e-16"; "v5litepod-16" and "tpu7x-16" are other names of v5e and v7x slices.

    Raises:
        UnknownTPUError: no such slice exists; the message lists the existing ones.

    Example:
        >>> topology_of("v2-8").mesh_shape, len(topology_of("v4-8").cores)
        ((2, 2, 1, 2), 4)
    """
    chip, number = split_name(name)
    sizes = slice_sizes(chip)
    if number not in sizes:
        raise UnknownTPUError(_no_such_size(name, chip, number))
    return _slice(chip, number)


def split_name(name: str) -> tuple[str, int]:
    """Return the chip and the number in the name of a slice: "v5litepod-8" to ("v5e", 8).

    Raises:
        UnknownTPUError: the name has another form, or the chip has no slices.
    """
    match = re.fullmatch(r"([a-z0-9]+)-(\d{1,9})", name.strip().lower())
    chip = ALIASES.get(match[1], match[1]) if match else ""
    if not match or chip not in _UNITS:
        raise UnknownTPUError(
            f"{name!r} is not a TPU that exists. {did_you_mean(name)}The slices are {known_slices()}. "
            'Write the name of one for a virtual TPU of that shape, or "local" for the TPU or GPU of this machine.'
        )
    return chip, int(match[2])


@functools.cache
def slice_sizes(chip: str) -> dict[int, Bounds]:
    """Return the numbers in the slice names of a chip, each with the number of chips along (x, y, z)."""
    if chip in _PLANES:
        boxes = [(x, y, 1) for x, y in _PLANES[chip]]
    else:
        smallest = ((1, 1, 1), *_BELOW_ONE_CUBE) if chip == "v7x" else _BELOW_ONE_CUBE
        boxes = [*smallest, *filter(None, map(_most_cubic, _CUBES[chip]))]
    units_per_chip = CHIPS[chip].cores if _UNITS[chip] == "TensorCores" else 1
    return {math.prod(box) * units_per_chip: box for box in boxes}


def known_slices() -> str:
    """Return the existing slices in one line for errors, "v2-8 to v2-512, v3-8 to v3-2048, ..."."""
    return ", ".join(f"{chip}-{min(slice_sizes(chip))} to {chip}-{max(slice_sizes(chip))}" for chip in sorted(_UNITS))


def did_you_mean(name: str) -> str:
    """Return a question with the slices that a misspelt name may mean, followed by a space; "" if there is none.

    Example:
        >>> did_you_mean("v5e8"), did_you_mean("v5-8"), did_you_mean("v9-8")
        ('Did you mean "v5e-8"? ', 'Did you mean "v5e-8" or "v5p-8"? ', '')
    """
    numbers = {chip: _number_after(chip, name) for chip in sorted(_UNITS)}
    slices = [f'"{chip}-{number}"' for chip, number in numbers.items() if number is not None]
    return f"Did you mean {' or '.join(slices)}? " if slices else ""


def _number_after(chip: str, name: str) -> int | None:
    """Return the number of a chip's slice in a misspelt name: dash or last letter of the chip missing, "tpu" added."""
    aliases = [alias for alias, chip_name in ALIASES.items() if chip_name == chip]
    names = "|".join({chip, chip.rstrip("epx"), *aliases})
    match = re.fullmatch(rf"(?:tpu[-_ ]*)?(?:{names})[-_ ]*(\d{{1,9}})", name.strip().lower())
    return int(match[1]) if match and int(match[1]) in slice_sizes(chip) else None


def row_of_cores(count: int, kind: str = "virtual") -> Topology:
    """Return a row of cores on one host, one core per chip: the topology of `cores=3`, which is no slice."""
    cores = tuple(Core(index, "cpu", virtual=True, chip_coordinates=(index, 0, 0)) for index in range(count))
    return Topology(f"{count} {kind} core{'s' if count != 1 else ''}", None, (count, 1, 1), 1, cores)


@functools.cache
def _slice(chip: str, number: int) -> Topology:
    bounds, replicas = slice_sizes(chip)[number], CHIPS[chip].replicas
    memory_bytes = CHIPS[chip].hbm_bytes // replicas
    positions = itertools.product(_by_host(bounds), range(replicas))
    cores = tuple(
        Core(index, "cpu", True, chip_coordinates=coordinates, core_on_chip=core, host=host, memory_bytes=memory_bytes)
        for index, ((host, coordinates), core) in enumerate(positions)
    )
    return Topology(f"{chip}-{number}", CHIPS[chip], bounds, replicas, cores)


def _by_host(bounds: Bounds) -> list[tuple[int, Bounds]]:
    """Return (host, coordinates) of each chip: hosts in turn, chips of a host with x fastest."""
    block = _host_block(bounds)
    blocks = [range(0, side, step) for side, step in zip(bounds, block, strict=True)]
    corners = [(x, y, z) for z in blocks[2] for y in blocks[1] for x in blocks[0]]
    inside = [(x, y, z) for z in range(block[2]) for y in range(block[1]) for x in range(block[0])]
    return [(host, (x + i, y + j, z + k)) for host, (x, y, z) in enumerate(corners) for i, j, k in inside]


def _host_block(bounds: Bounds) -> Bounds:
    """Return the chips of one host: 2x2, except that a small v5e or v6e slice of 1, 4 or 8 chips has one host."""
    if math.prod(bounds) <= 8 and bounds[2] == 1:
        return bounds
    return (2, 2, 1)


def _most_cubic(cubes: int) -> Bounds | None:
    """Return the box of `cubes` 4x4x4 cubes with the smallest sum of sides; None if one side is too long."""
    boxes = [
        (a, b, cubes // (a * b))
        for a in range(1, cubes + 1)
        for b in range(a, cubes // a + 1)
        if cubes % (a * b) == 0 and b <= cubes // (a * b)
    ]
    a, b, c = min(boxes, key=sum)
    return (4 * a, 4 * b, 4 * c) if c <= _MAX_SIDE_CUBES else None


def _no_such_size(name: str, chip: str, number: int) -> str:
    sizes = sorted(slice_sizes(chip))
    nearest = [*[size for size in sizes if size < number][-1:], *[size for size in sizes if size > number][:1]]
    listed = " and ".join(f'"{chip}-{size}"' for size in nearest)
    verb = "is" if len(nearest) == 1 else "are"
    return (
        f"{name!r} is not a TPU that exists: the number counts {_UNITS[chip]}, and the nearest {verb} {listed}. "
        'For any number of virtual cores write "virtual" and give cores.'
    )
