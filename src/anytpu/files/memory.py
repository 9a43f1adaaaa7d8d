"""Memory that a file asks for, against the memory that this process can have.

Idea: a size that a file declares is compared with what is free now: of the machine, of its control groups (a
container's limit) and of the process's own limits. Where much is free that is not enough: a file of a megabyte could
take all of it. So what unpacks to more than 1 GiB may be at most 100 times its packed size. An array of zeros, which
packs a thousandfold, can be saved uncompressed.

Rule: the comparison comes before the allocation.
"""

from __future__ import annotations

import os
from pathlib import Path

from anytpu import _env
from anytpu.units import GIB, MIB, format_bytes

FREELY_UNPACKED_BYTES = GIB
"""So much may come out of a file of any size."""
MAX_RATIO = 100
"""Times that a file may unpack to, where it unpacks to more than `FREELY_UNPACKED_BYTES`."""

_UNCHECKED_BYTES = 16 * MIB
"""Below this, nobody looks: the look itself takes a tenth of a millisecond."""


def check_memory(needed_bytes: int) -> None:
    """Check that so much memory is free.

    Args:
        needed_bytes: bytes that are about to be allocated.

    Raises:
        ValueError: it is not; the message has both sizes.

    Example:
        >>> check_memory(2**60)
        Traceback (most recent call last):
        ValueError: it needs 1024 PiB of memory, and ... are free
    """
    if needed_bytes <= _UNCHECKED_BYTES:
        return
    free = [size for size in (_env.available_memory_bytes(), *left_in_limits()) if size is not None]
    if free and needed_bytes > min(free):
        raise ValueError(f"it needs {format_bytes(needed_bytes)} of memory, and {format_bytes(min(free))} are free")


def is_swollen(packed_bytes: int, unpacked_bytes: int) -> bool:
    """Return whether something unpacks to more than 1 GiB and to more than 100 times its packed size.

    Example:
        >>> is_swollen(2**20, 2**30), is_swollen(2**20, 2**30 + 1), is_swollen(2**30, 2**36)
        (False, True, False)
    """
    return unpacked_bytes > max(FREELY_UNPACKED_BYTES, MAX_RATIO * packed_bytes)


def check_ratio(packed_bytes: int, unpacked_bytes: int) -> None:
    """Check what something unpacks to, before it is unpacked.

    Raises:
        ValueError: it is swollen; the message has both sizes.

    Example:
        >>> check_ratio(2**20, 2**32)
        Traceback (most recent call last):
        ValueError: it unpacks from 1 MiB to 4 GiB, and above 1 GiB a file may unpack to 100 times its size
    """
    if is_swollen(packed_bytes, unpacked_bytes):
        raise ValueError(
            f"it unpacks from {format_bytes(packed_bytes)} to {format_bytes(unpacked_bytes)}, and above "
            f"{format_bytes(FREELY_UNPACKED_BYTES)} a file may unpack to {MAX_RATIO} times its size"
        )


def left_in_limits() -> list[int]:
    """Return the bytes that each of the process's own limits, as `ulimit -v` sets one, leaves."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return []
    try:
        sizes = Path("/proc/self/statm").read_text().split()
    except OSError:
        return []
    pages = [int(size) * os.sysconf("SC_PAGE_SIZE") for size in sizes]
    limits = ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5]))
    soft = [(resource.getrlimit(limit)[0], used) for limit, used in limits]
    return [max(0, most - used) for most, used in soft if most != resource.RLIM_INFINITY]
