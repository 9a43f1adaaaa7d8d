"""Checks of a file's declared size against the memory that is available to this process.

Idea: a declared size is compared with the free memory now: the machine's, its control groups' (a container's limit) and
the process's own limits. A second limit applies where much is free, since a file of one megabyte could take all of it.
Above 1 GiB, content may unpack to at most 100 times its packed size. An array of zeros packs a thousandfold; save it
uncompressed.

Rule: the comparison comes before the allocation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from anytpu.units import GIB, MIB, format_bytes

FREELY_UNPACKED_BYTES = GIB
"""Unpacked size that is allowed whatever the packed size."""
MAX_RATIO = 100
"""Maximum ratio of unpacked to packed size above `FREELY_UNPACKED_BYTES`."""

_UNCHECKED_BYTES = 16 * MIB
"""Sizes up to this are not checked: the check itself takes a tenth of a millisecond."""
# For cgroup v2 and v1: files of the memory limit and of the usage, and the reclaimable part of the usage.
_CGROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
_ROOT = Path("/")


def check_memory(needed_bytes: int) -> None:
    """Check that an allocation fits into the free memory.

    Args:
        needed_bytes: size of the allocation.

    Raises:
        ValueError: less memory is free; the message has both sizes.

    Example:
        >>> check_memory(2**60)
        Traceback (most recent call last):
        ValueError: it needs 1,024 PiB of memory, and ... are free
    """
    if needed_bytes <= _UNCHECKED_BYTES:
        return
    free = [size for size in (available_memory_bytes(), *left_in_limits()) if size is not None]
    if free and needed_bytes > min(free):
        raise ValueError(f"it needs {format_bytes(needed_bytes)} of memory, and {format_bytes(min(free))} are free")


def exceeds_unpack_ratio(packed_bytes: int, unpacked_bytes: int) -> bool:
    """Return whether the unpacked size is above 1 GiB and above 100 times the packed size.

    Example:
        >>> exceeds_unpack_ratio(2**20, 2**30), exceeds_unpack_ratio(2**20, 2**30 + 1)
        (False, True)
        >>> exceeds_unpack_ratio(2**30, 2**36)
        False
    """
    return unpacked_bytes > max(FREELY_UNPACKED_BYTES, MAX_RATIO * packed_bytes)


def check_ratio(packed_bytes: int, unpacked_bytes: int) -> None:
    """Check an unpacked size against the packed one, before unpacking.

    Raises:
        ValueError: the ratio is too large (see `exceeds_unpack_ratio`); the message has both sizes.

    Example:
        >>> check_ratio(2**20, 2**32)
        Traceback (most recent call last):
        ValueError: it unpacks from 1 MiB to 4 GiB, and above 1 GiB a file may unpack to 100 times its size
    """
    if exceeds_unpack_ratio(packed_bytes, unpacked_bytes):
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


def resident_bytes(process: int | str = "self") -> int:
    """Return the resident memory of a process, bytes; 0 if it has ended, or if the system does not report it."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def available_memory_bytes(root: Path = _ROOT) -> int | None:
    """Return the memory available to programs, or None if the system does not report it.

    In a container with a memory limit it is the unused part of that limit.

    Args:
        root: root folder of the machine's file system.
    """
    available = re.search(r"^MemAvailable:\s+(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    return max(0, min([int(available[1]) * 1024, *_available_in_cgroups(root)])) if available else None


def _available_in_cgroups(root: Path) -> Iterator[int]:
    """Yield the available bytes in each memory-limiting cgroup of this process; inactive page cache is available."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        mount = root / "sys/fs/cgroup" / kinds
        limit_file, usage_file, cache_field = _CGROUP_FILES[kinds]
        group = mount / path.lstrip("/")
        for folder in (group, *(parent for parent in group.parents if parent == mount or mount in parent.parents)):
            limit, usage = _read(folder / limit_file), _read(folder / usage_file)
            cached = re.search(rf"^{cache_field} (\d+)$", _read(folder / "memory.stat"), re.MULTILINE)
            if limit.isdigit() and usage.isdigit():
                yield max(int(limit) - int(usage) + (int(cached[1]) if cached else 0), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
