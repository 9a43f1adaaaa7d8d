"""Checks of a file's declared size against the memory that is available to this process.

Idea: a declared size is compared with the free memory now: the machine's, its control groups' (a container's limit) and
the process's own limits. A second limit applies where much is free, since a file of one megabyte could take all of it.
Above 1 GiB, content may unpack to at most 100 times its packed size. An array of zeros packs a thousandfold; save it
uncompressed.

Rule: the comparison comes before the allocation.
"""

from __future__ import annotations

import os
from pathlib import Path

from anytpu import _env
from anytpu.units import GIB, MIB, format_bytes

FREELY_UNPACKED_BYTES = GIB
"""Unpacked size that is allowed whatever the packed size."""
MAX_RATIO = 100
"""Maximum ratio of unpacked to packed size above `FREELY_UNPACKED_BYTES`."""

_UNCHECKED_BYTES = 16 * MIB
"""Sizes up to this are not checked: the check itself takes a tenth of a millisecond."""


def check_memory(needed_bytes: int) -> None:
    """Check that an allocation fits into the free memory.

    Args:
        needed_bytes: size of the allocation.

    Raises:
        ValueError: less memory is free; the message has both sizes.

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
    """Return whether the unpacked size is above 1 GiB and above 100 times the packed size.

    Example:
        >>> is_swollen(2**20, 2**30), is_swollen(2**20, 2**30 + 1), is_swollen(2**30, 2**36)
        (False, True, False)
    """
    return unpacked_bytes > max(FREELY_UNPACKED_BYTES, MAX_RATIO * packed_bytes)


def check_ratio(packed_bytes: int, unpacked_bytes: int) -> None:
    """Check an unpacked size against the packed one, before unpacking.

    Raises:
        ValueError: the ratio is too large (see `is_swollen`); the message has both sizes.

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
    """Return the bytes left under each of the process's own limits, such as that of `ulimit -v`."""
    try:
        import resource
    except ImportError:  # Windows has no such limits
        return []
    try:
        sizes = Path("/proc/self/statm").read_text().split()
    except OSError:
        return []
    # The fields of statm: 0 is the total size, 5 is data and stack.
    pages = [int(size) * os.sysconf("SC_PAGE_SIZE") for size in sizes]
    limits = ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5]))
    soft_limits = [(resource.getrlimit(limit)[0], used) for limit, used in limits]
    return [max(0, limit - used) for limit, used in soft_limits if limit != resource.RLIM_INFINITY]
