"""The numbers in the compiler's messages about a program that does not fit.

The compiler has three forms, and each is read. "the total memory required for HLO temporaries (32.00G) exceeds
available HBM (15.75G)". "Used 63.80G of 30.75G hbm" with a list of the largest allocations. "Requires 3.47E, has 14.49G
available". A G is 2**30 bytes.
"""

from __future__ import annotations

import dataclasses
import re

_SIZE = r"(\d+(?:\.\d+)?)([KMGTPE]?)B?"
_FORMS = (
    re.compile(rf"memory required for HLO temporaries \({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
    re.compile(rf"Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"Requires {_SIZE}, has {_SIZE} available"),
)
_UNITS = " KMGTPE"
_SAID_LINES = 12


@dataclasses.dataclass(frozen=True)
class StatedShortage:
    """The compiler's statement about a program that does not fit.

    Attributes:
        needed_bytes: needed memory, bytes.
        limit_bytes: available memory, bytes.
        allocations: (bytes, shape, op_name) of the largest buffers that it lists.
        said: the first lines of its message.
    """

    needed_bytes: int
    limit_bytes: int
    allocations: tuple[tuple[int, str, str], ...]
    said: str


def shortage(said: str) -> StatedShortage | None:
    """Return the shortage that a message of the compiler states, or None if it is about something else.

    Example:
        >>> shortage("RESOURCE_EXHAUSTED: Ran out of memory. Used 63.80G of 30.75G hbm.").limit_bytes / 2**30
        30.75
    """
    for form in _FORMS:
        if match := form.search(said):
            needed, needed_unit, limit, limit_unit = match.groups()
            return StatedShortage(
                _bytes(needed, needed_unit), _bytes(limit, limit_unit), tuple(_allocations(said)), _first_lines(said)
            )
    return None


def _allocations(said: str) -> list[tuple[int, str, str]]:
    listed = re.split(r"\n(?= *\d+\. Size: )", said)[1:]
    allocations = []
    for text in listed:
        size, shape = re.search(rf"\d+\. Size: {_SIZE}", text), re.search(r"Shape: (.*)", text)
        operator = re.search(r'op_name="([^"]*)"', text)
        if size and shape:
            allocations.append((_bytes(*size.groups()), shape[1].strip(), operator[1] if operator else ""))
    return allocations


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * 1024 ** _UNITS.index(unit or " "))


def _first_lines(said: str) -> str:
    return "\n".join(line.rstrip() for line in said.strip().splitlines()[:_SAID_LINES])
