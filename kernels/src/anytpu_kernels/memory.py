"""Huge pages for the large buffers of XLA on the CPU, and their reuse.

Idea: XLA allocates a call's temporary memory anew and frees it afterwards. A step that takes hundreds of megabytes then
spends a fifth of its time in page faults, one for every 4 KB. With huge pages there is one for every 2 MB. One freed
block is kept for the next call, which has no page faults.

Rule: Linux may take the pages of the kept block when memory is short. If it has no free huge pages, it uses ordinary
ones.
"""

from __future__ import annotations

import functools

from anytpu_kernels.library import load


@functools.cache
def use_huge_pages() -> bool:
    """Request huge pages for all blocks of 32 MB and more that jaxlib allocates from now on, and reuse freed ones.

    Returns:
        Whether it does so: False if jaxlib does not allocate by `posix_memalign`.
    """
    return bool(load().anytpu_use_huge_pages())
