"""Clean-up of a data set's worker processes.

Idea: a worker that outlives its parent keeps memory and files for ever. A killed process (kill -9, out of memory)
cannot notify its workers, so each worker watches its parent.

Rule: nothing here imports JAX or Keras.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any


def watch_parent(index: int, count: int) -> None:
    """Start a thread that ends this process as soon as its parent has ended for any reason.

    Args:
        index: index of this worker; grain passes it.
        count: number of workers.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_after, args=(parent,), name=f"worker {index} of {count}", daemon=True).start()


def _leave_after(parent: Any) -> None:
    parent.join()
    os._exit(1)
