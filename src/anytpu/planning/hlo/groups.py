"""`groups_of`: the devices that take part in a collective.

Idea: the compiler writes the groups of devices in three ways. Each by its members: `{{0,1},{2,3}}`. As a grid of
numbers that is transposed and cut: `[2,4]<=[4,2]T(1,0)`. As axes of a mesh: `mesh['x'=4,'y'=2] {'x'}`.

Source: openxla/xla, xla/hlo/ir/replica_group.h.
"""

from __future__ import annotations

import dataclasses
import math
import re

from anytpu.errors import PlanError
from anytpu.planning.quoting import quoted

_FIELD = re.compile(r"replica_groups=(mesh\[[^\]]*\](?:, ?device_ids=\S+)? \{[^}]*\}|\[[^ ]*|\{\}|\{\{.*?\}\})")
_LISTS = re.compile(r"\{\{\d{1,7}(,\d{1,7})*\}(,\{\d{1,7}(,\d{1,7})*\})*\}")
_GRID = re.compile(r"\[(\d{1,7}),(\d{1,7})\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_AXIS = re.compile(r"'([^']+)'=(\d{1,7})\b")
_IDS = re.compile(r"device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)")
MAX_DEVICES = 2**20
"""No collective has more devices than this."""
_USED = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


@dataclasses.dataclass(frozen=True, slots=True)
class Groups:
    """Groups of devices of the same size.

    Attributes:
        count: number of groups.
        size: number of devices of one group.
        first: numbers of the devices of the first group.
        axes: the axes of the mesh along which a group lies, if the text names them.
        mesh: names and sizes of all axes of that mesh.
    """

    count: int
    size: int
    first: tuple[int, ...]
    axes: tuple[str, ...] = ()
    mesh: tuple[tuple[str, int], ...] = ()


def groups_of(text: str, num_partitions: int) -> Groups:
    """Read the groups of a collective; one group of all devices if it names none.

    Args:
        text: the instruction's text.
        num_partitions: number of devices of the module.

    Raises:
        PlanError: the groups are written in an unknown form.

    Example:
        >>> groups_of("replica_groups=[2,4]<=[4,2]T(1,0)", 8)
        Groups(count=2, size=4, first=(0, 2, 4, 6), axes=(), mesh=())
        >>> groups_of("replica_groups=mesh['x'=4,'y'=2] {'y'}", 8).first
        (0, 1)
    """
    match = _FIELD.search(text)
    if not match:
        if "replica_groups=" in text:
            start = text.find("replica_groups=")
            raise _unknown(text[start : start + 80])
        return Groups(1, num_partitions, tuple(range(num_partitions)))
    written = match[1]
    if written == "{}":
        return Groups(1, num_partitions, tuple(range(num_partitions)))
    if written.startswith("{"):
        return _listed(written)
    return _of_mesh(written) if written.startswith("mesh") else _of_grid(written)


def _listed(written: str) -> Groups:
    if not _LISTS.fullmatch(written):
        raise _unknown(f"replica_groups={written}")
    groups = [tuple(map(int, group.split(","))) for group in written[2:-2].split("},{")]
    return Groups(len(groups), max(map(len, groups)), groups[0])


def _of_grid(written: str) -> Groups:
    match = _GRID.match(written)
    if not match:
        raise _unknown(f"replica_groups={written}")
    count, size = int(match[1]), int(match[2])
    turned = _turned(match[3], match[4])
    if not turned or count * size != math.prod(side for side, _ in turned) or not 1 <= count * size <= MAX_DEVICES:
        raise _unknown(f"replica_groups={written}")
    return Groups(count, size, tuple(_numbered(place, turned) for place in range(size)))


def _turned(sides_text: str, order_text: str | None) -> list[tuple[int, int]]:
    """Return sizes and strides of a grid after a transposition of its dimensions; [] for none."""
    sides = tuple(map(int, filter(None, sides_text.split(","))))
    order = tuple(map(int, filter(None, order_text.split(",")))) if order_text else tuple(range(len(sides)))
    if sorted(order) != list(range(len(sides))):
        return []
    strides = [math.prod(sides[axis + 1 :]) for axis in range(len(sides))]
    return [(sides[axis], strides[axis]) for axis in order]


def _of_mesh(written: str) -> Groups:
    mesh_text, _, used_text = written.rpartition(" ")
    mesh = tuple((name, int(size)) for name, size in _AXIS.findall(mesh_text))
    ids = _IDS.search(mesh_text)
    used = _USED.findall(used_text)
    if not _is_mesh(dict(mesh), used) or ("device_ids" in mesh_text and not ids):
        raise _unknown(f"replica_groups={written}")
    strides = {name: math.prod(size for _, size in mesh[place + 1 :]) for place, (name, _) in enumerate(mesh)}
    sizes, turned = dict(mesh), list[tuple[int, int]]()
    for name, before, part in used:
        # 'x':(2)4 is the part of an axis that has 2 before it and 4 of its own.
        whole = sizes[name]
        own = int(part) if part else whole
        turned.append((own, strides[name] * (whole // (int(before or 1) * own) if part else 1)))
    size = math.prod(own for own, _ in turned)
    total = math.prod(sizes.values())
    axes = tuple(name for name, _, _ in used)
    places = tuple(_numbered(place, turned) for place in range(size))
    if ids:
        # The mesh is laid over a grid of device numbers that is transposed first.
        grid = _turned(ids[1], ids[2])
        if math.prod(side for side, _ in grid) != total:
            raise _unknown(f"replica_groups={written}")
        places = tuple(_numbered(place, grid) for place in places)
    return Groups(total // size, size, places, axes, mesh)


def _is_mesh(sizes: dict[str, int], used: list[tuple[str, str, str]]) -> bool:
    """Return whether axes have sizes, and the used axes, or their parts, are among them."""
    if not sizes or not 1 <= math.prod(sizes.values()) <= MAX_DEVICES or len({name for name, *_ in used}) != len(used):
        return False
    parts = [(sizes.get(name, 0), int(before or 1) * int(part or 1)) for name, before, part in used]
    return all(whole and part and whole % part == 0 for whole, part in parts)


def _numbered(place: int, turned: list[tuple[int, int]]) -> int:
    """Return the device at an index of a grid whose dimensions have these sizes and strides."""
    number = 0
    for side, stride in reversed(turned):
        place, digit = divmod(place, side)
        number += digit * stride
    return number


def _unknown(written: str) -> PlanError:
    return PlanError(
        f"the groups {quoted(written)} of a collective in the compiler's text cannot be read; they should look like "
        f"'replica_groups={{{{0,1}},{{2,3}}}}' or 'replica_groups=[2,2]<=[4]'"
    )
