"""Huge pages for the large buffers of XLA on the CPU.

Idea: XLA allocates a call's temporary memory anew and frees it afterwards. A step that takes hundreds of megabytes then
spends a fifth of its time in page faults of 4 KB each. With huge pages there is one for every 2 MB.

Rule: nothing is kept, and nothing takes more memory. Where Linux has no huge pages to give, all is as before.
"""

from __future__ import annotations

import functools

from anytpu_kernels.library import load


@functools.cache
def use_huge_pages() -> bool:
    """Ask Linux for huge pages for all blocks of 32 MB and more that jaxlib allocates from now on.

    Returns:
        Whether they are asked for: False where jaxlib does not allocate by `posix_memalign`.
    """
    return bool(load().anytpu_use_huge_pages())
