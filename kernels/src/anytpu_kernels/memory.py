"""Huge pages for the large buffers of XLA on the CPU.

Idea: XLA allocates a call's temporary memory anew and frees it afterwards. A step that takes hundreds of megabytes then
spends a fifth of its time in page faults, one for every 4 KB. With huge pages there is one for every 2 MB.

Rule: no memory is cached, and none is added. If Linux has no free huge pages, it uses ordinary ones.
"""

from __future__ import annotations

import functools

from anytpu_kernels.library import load


@functools.cache
def use_huge_pages() -> bool:
    """Request huge pages from Linux for all blocks of 32 MB and more that jaxlib allocates from now on.

    Returns:
        Whether they are requested: False if jaxlib does not allocate by `posix_memalign`.
    """
    return bool(load().anytpu_use_huge_pages())
