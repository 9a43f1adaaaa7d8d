"""`group_of`: which devices take part in a collective.

Idea: the compiler writes the groups of a collective in one of three ways: each device's number, a formula over all
numbers, or the names of axes of a mesh. Of each, what matters for time is how many devices a group has, how many
groups there are, and how far apart the devices of a group lie.
Source: https://openxla.org/xla/operation_semantics and the text forms of XLA's `CollectiveDeviceList`.
"""

from __future__ import annotations

import dataclasses
import math
import re

_LISTED = re.compile(r"replica_groups=\{(\{[\d,{}\s]*\})\}")
_FORMULA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=(?:@?\w+)?\[([^\]]*)\](?:, ?device_ids=\([^)]*\)| ?\([^)]*\))* ?\{([^}]*)\}")
_AXIS = re.compile(r"'?([\w.:\-() ]+?)'?=(\d+)")
_NAME = re.compile(r"'([^']+)'|([\w.\-]+(?::\(\d+\)\d+)?)")
_PAIRS = re.compile(r"source_target_pairs=\{(\{[\d,{}\s]*\})\}")


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """One group of devices that exchange data.

    Attributes:
        size: how many devices.
        stride: from one to the next, by number.
    """

    size: int
    stride: int


def group_of(text: str, devices: int) -> Group:
    """Return the groups that an instruction's text names; all devices where it names none.

    Args:
        text: the instruction's line.
        devices: how many there are in all.

    Example:
        >>> group_of("all-reduce(%x), replica_groups=[2,4]<=[4,2]T(1,0)", 8)
        Group(size=4, stride=2)
        >>> group_of("all-reduce(%x), replica_groups={{0,1,2,3},{4,5,6,7}}", 8)
        Group(size=4, stride=1)
    """
    if match := _LISTED.search(text):
        return _of_numbers(match[1])
    if match := _FORMULA.search(text):
        return _of_formula(*match.groups())
    if match := _MESH.search(text):
        return _of_mesh(match[1], match[2], devices)
    return Group(devices, 1)


def hops_of(text: str) -> int:
    """Return the largest step, by number of device, of a `collective-permute` that does not wrap around; 1 if none."""
    match = _PAIRS.search(text)
    pairs = [tuple(map(int, pair.split(","))) for pair in re.findall(r"\{(\d+,\d+)\}", match[1])] if match else []
    steps = sorted(abs(target - source) for source, target in pairs)
    return max(1, steps[len(steps) // 2]) if steps else 1


def _of_numbers(text: str) -> Group:
    first = re.findall(r"\d+", text[: text.find("}")])
    numbers = [int(number) for number in first]
    return Group(max(1, len(numbers)), numbers[1] - numbers[0] if len(numbers) > 1 else 1)


def _of_formula(shape: str, sizes: str, order: str | None) -> Group:
    groups = [int(number) for number in shape.split(",")]
    dims = [int(number) for number in sizes.split(",")]
    axes = [int(number) for number in order.split(",")] if order else list(range(len(dims)))
    size = groups[-1]
    # The members of a group run along the last axes of what the numbers were transposed to.
    return Group(size, math.prod(dims[axes[-1] + 1 :]))


def _of_mesh(axes_text: str, names_text: str, devices: int) -> Group:
    sizes = {name: int(size) for name, size in _AXIS.findall(axes_text)}
    used = [first or second for first, second in _NAME.findall(names_text)]
    names = [name for name in sizes if name in {one.split(":")[0] for one in used}]
    if not names:
        return Group(devices, 1)
    size = math.prod(_size(one, sizes) for one in used)
    last = list(sizes).index(names[-1])
    return Group(size, math.prod(list(sizes.values())[last + 1 :]))


def _size(name: str, sizes: dict[str, int]) -> int:
    """Return the size of an axis, or of the part of it that "axis:(2)4" names."""
    base, _, part = name.partition(":")
    match = re.search(r"\)(\d+)$", part)
    return int(match[1]) if match else sizes.get(base, 1)
