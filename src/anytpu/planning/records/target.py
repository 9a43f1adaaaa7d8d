"""`Target`: a slice of a TPU pod as the compiler knows it, and the rates of one of its devices.

Idea: clouds name a slice "v3-8", the compiler "v3:2x2". A device of JAX is a core on v2, v3 and v7x, and a chip of one
or two cores elsewhere. A target holds all of these.

A plan can be made for more systems than are rented out. Examples are one chip alone ("v2-2", "v4-2", "v5e-1") and the
single cores of v4 chips ("v4-8:cores", eight devices in place of four). Several slices may be joined by the data
center's network ("2xv5e-256").

Rule: all rates are per device, derived from the chip's datasheet in `system/chips.toml`. The compiler gets the hosts'
blocks of chips from `system/topologies.py`.

Source of the memory limits: libtpu 0.0.51, by trial, because part of the memory is reserved and no document says how
much. A program `x * 2 + 1` over all devices of a slice of one host compiles up to a limit and not beyond. Argument and
result together were bisected to 1 MiB. The comment beside each number quotes the compiler. Its figure is rounded to
0.01 GiB, and it needs some MiB itself.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any, Literal

from anytpu.errors import PlanError, SettingError, UnknownTPUError
from anytpu.system.chips import CHIPS, Chip
from anytpu.system.topologies import ALIASES, Bounds, did_you_mean, known_slices, slice_sizes, topology_of
from anytpu.units import MIB

# libtpu's name of each chip in the name of a topology.
_LIBTPU_NAMES = {"v7x": "tpu7x"}

_NAME = re.compile(r"(?:(?P<slices>\d{1,4})x)?(?P<chip>[a-z0-9]+)-(?P<number>\d{1,9})(?P<single>:cores)?")
# Chips whose cores the compiler joins to one device only when it is told to.
_JOINED_ON_DEMAND = frozenset({"v4"})
_MAX_SLICES = 1024
# Names that may mean the GPU of this machine.
_NO_TPU = ("gpu", "local", "cuda")
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

Stage = Literal["schedule", "code"]
"""The last stage of a compilation.

"schedule": fusions, collectives, their order and the memory are final. "code": machine code too, with the cycles of
each operation; it takes nine tenths of the time.
"""


@dataclasses.dataclass(frozen=True)
class Target:
    """A system that a program is planned for.

    Attributes:
        name: "v3-8".
        chip: its chip.
        devices: number of devices that JAX would see: cores of v2, v3 and v7x, chips of the others.
        chips: number of chips of the slice.
        hosts: number of host machines.
        chip_bounds: number of chips along (x, y, z).
        compiler_name: the compiler's name: "v3:2x2".
        chip_config: "megacore" if the two cores of a chip are one device and the compiler must be told, else None.
        aliases: other names: "v5litepod-8".
        device_kind: JAX's name of a device: "TPU v3".
        slices: number of joined slices. Devices, chips and hosts count all of them, chip_bounds one.
    """

    name: str
    chip: Chip
    devices: int
    chips: int
    hosts: int
    chip_bounds: Bounds
    compiler_name: str
    chip_config: str | None = None
    aliases: tuple[str, ...] = ()
    device_kind: str = ""
    slices: int = 1

    @property
    def compiler_arguments(self) -> dict[str, Any]:
        """Arguments of `jax.experimental.topologies.get_topology_desc` beside the name."""
        arguments: dict[str, Any] = {"chips_per_host_bounds": _host_bounds(self)}
        if self.chip_config is not None:
            arguments["chip_config_name"] = self.chip_config
        if self.slices > 1:
            arguments["num_slices"] = self.slices
        return arguments

    @property
    def flops_per_s(self) -> float:
        """Peak bfloat16 rate of one device."""
        assert self.chip.bf16_flops_per_s is not None
        return self.chip.bf16_flops_per_s / self.chip.replicas

    @property
    def hbm_bytes_per_s(self) -> float:
        """Memory bandwidth of one device; for a core that shares its chip's memory, an equal part."""
        return self.chip.hbm_bytes_per_s / self.chip.replicas

    @property
    def shares_memory(self) -> bool:
        """Whether a device is one of two cores with one memory."""
        return self.chip.name in _JOINED_ON_DEMAND and self.chip.replicas > 1

    @property
    def max_hbm_bytes_per_s(self) -> float:
        """Memory bandwidth of one device while no other device uses the memory that it shares."""
        return self.chip.hbm_bytes_per_s if self.shares_memory else self.hbm_bytes_per_s

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return {
            "name": self.name,
            "chip": self.chip.name,
            "devices": self.devices,
            "chips": self.chips,
            "hosts": self.hosts,
            "topology": self.compiler_name,
            "device_kind": self.device_kind,
            "slices": self.slices,
        }


def target_named(name: str) -> Target:
    """Return the target with a slice's name.

    Args:
        name: "v3-8", "v5e-16", "v5litepod-16"; one chip: "v2-2", "v5e-1"; the single cores of v4: "v4-8:cores"; two
            slices: "2xv5e-256".

    Raises:
        SettingError: it is no text.
        UnknownTPUError: no such slice exists, or it is a GPU; the message names the nearest, or the known ones.

    Example:
        >>> target_named("v3-8").compiler_name, target_named("v4-8").devices
        ('v3:2x2', 4)
        >>> target_named("v4-8:cores").devices, target_named("2xv5e-256").devices
        (8, 512)
    """
    if not isinstance(name, str):
        raise SettingError(f'tpu must name one system, such as "v3-8", not {name!r}')
    if name.strip().lower() in _NO_TPU:
        raise UnknownTPUError(_no_tpu(name))
    match = _NAME.fullmatch(name.strip().lower())
    chip_name = ALIASES.get(match["chip"], match["chip"]) if match else ""
    if match is None or chip_name not in _SLICED or not 1 <= int(match["slices"] or 1) <= _MAX_SLICES:
        raise UnknownTPUError(_unknown(name))
    if match["single"] and chip_name not in _JOINED_ON_DEMAND:
        raise UnknownTPUError(
            f"{name!r} is not a TPU that exists: only v4 runs its cores both joined and one by one. Leave ':cores' out."
        )
    chip, number = CHIPS[chip_name], int(match["number"])
    if number != _one_chip(chip) and number not in slice_sizes(chip_name):
        raise UnknownTPUError(_no_such_size(name, chip, number))
    if match["single"]:
        chip = dataclasses.replace(chip, is_megacore=False)
    return _target(chip, number, int(match["slices"] or 1), single=bool(match["single"]))


def targets_named(tpu: str | Sequence[str]) -> list[Target]:
    """Return the targets with the names of one slice or several, each once.

    Raises:
        SettingError: there is no name.
        UnknownTPUError: no such slice exists.
    """
    names = [tpu] if isinstance(tpu, str) else tpu
    if not isinstance(names, Sequence) or not names or not all(isinstance(name, str) for name in names):
        raise SettingError(f'tpu must name at least one system, such as "v3-8" or ["v2-8", "v3-8"], not {tpu!r}')
    targets = {name: target_named(name) for name in names}
    return list({target.name: target for target in targets.values()}.values())


def every_target() -> list[Target]:
    """Return the target of each slice of each chip, one chip alone included."""
    numbers = [(chip, number) for chip in _SLICED for number in sorted({*slice_sizes(chip), _one_chip(CHIPS[chip])})]
    return [_target(CHIPS[chip], number, 1, single=False) for chip, number in numbers]


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


_SLICED = tuple(chip for chip in CHIPS if chip not in ("v1", "v4i"))  # libtpu knows neither


def _target(chip: Chip, number: int, slices: int, single: bool) -> Target:
    bounds = (1, 1, 1) if number == _one_chip(chip) else slice_sizes(chip.name)[number]
    sides = bounds if chip.torus_rank == 3 else bounds[:2]
    prefix, suffix = "" if slices == 1 else f"{slices}x", ":cores" if single else ""
    names = [chip.name, *(alias for alias, chip_name in ALIASES.items() if chip_name == chip.name)]
    first, *aliases = (f"{prefix}{name}-{number}{suffix}" for name in names)
    return Target(
        name=first,
        chip=chip,
        devices=math.prod(bounds) * chip.replicas * slices,
        chips=math.prod(bounds) * slices,
        hosts=_hosts(chip, number) * slices,
        chip_bounds=bounds,
        compiler_name=f"{_LIBTPU_NAMES.get(chip.name, chip.name)}:{'x'.join(map(str, sides))}",
        chip_config="megacore" if chip.is_megacore else None,
        aliases=tuple(aliases),
        device_kind=chip.device_kinds[0],
        slices=slices,
    )


def _one_chip(chip: Chip) -> int:
    """Return the number in the name of one chip alone: it counts cores, or chips for v5e and v6e."""
    return 1 if 1 in slice_sizes(chip.name) else chip.cores


def _hosts(chip: Chip, number: int) -> int:
    return 1 if number == _one_chip(chip) else topology_of(f"{chip.name}-{number}").num_tasks


def _host_bounds(target: Target) -> Bounds:
    """Return the chips of one host: all of a small flat slice, else 2x2."""
    per_host = target.chips // target.hosts
    return target.chip_bounds if per_host == math.prod(target.chip_bounds) else (2, 2, 1)


def _no_such_size(name: str, chip: Chip, number: int) -> str:
    sizes = sorted({*slice_sizes(chip.name), _one_chip(chip)})
    nearest = [*[size for size in sizes if size < number][-1:], *[size for size in sizes if size > number][:1]]
    listed = " and ".join(f'"{chip.name}-{size}"' for size in nearest)
    counted = "chips" if chip.name in ("v5e", "v6e") else "TensorCores"
    verb = "is" if len(nearest) == 1 else "are"
    return f"{name!r} is not a TPU that exists: the number counts {counted}, and the nearest {verb} {listed}."


def _no_tpu(name: str) -> str:
    return (
        f"{name!r} is not a TPU, and plans are for TPUs. Name the one that you would rent, such as tpu='v5e-8' (--tpu "
        "v5e-8); none has to be at hand. To time a job on the GPU of this machine, run it there: anytpu compare."
    )


def _is_known(name: str) -> bool:
    try:
        return bool(target_named(name))
    except UnknownTPUError:
        return False


def _unknown(name: str) -> str:
    parts = name.replace(",", " ").split()
    known = [part for part in parts if len(parts) > 1 and _is_known(part)]
    if known and len(known) == len(parts):
        hint = f"For several slices pass a list, {parts!r}; in a shell, --tpu {','.join(parts)}. "
    elif len(known) == 1:
        hint = f'Did you mean "{known[0]}"? '
    elif (chip := ALIASES.get(name.strip().lower(), name.strip().lower())) in _SLICED:
        hint = f'Add the size of the slice: "{chip}-8". '
    else:
        hint = did_you_mean(name)
    return (
        f"{name!r} is not a TPU that can be planned for. {hint}The slices are {known_slices()}; one chip "
        "alone is "
        f"{', '.join(f'{chip}-{_one_chip(CHIPS[chip])}' for chip in _SLICED)}; the single cores of v4 are such as "
        '"v4-8:cores", several slices such as "2xv5e-256".'
    )
