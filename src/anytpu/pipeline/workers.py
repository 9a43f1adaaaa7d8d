"""What runs in the worker processes of a data set, beside its functions.

Idea: a worker that outlives its parent holds memory and files for ever. A process that is killed hard (kill -9, out of
memory) cannot tell its workers; so each worker watches its parent.

Rule: nothing here imports JAX or Keras.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import Any


def watch_parent(index: int, count: int) -> None:
    """Start a thread that ends this process as soon as its parent has ended, however that ended.

    Args:
        index: the number of this worker; grain passes it.
        count: how many workers there are.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_after, args=(parent,), name=f"worker {index} of {count}", daemon=True).start()


def _leave_after(parent: Any) -> None:
    parent.join()
    os._exit(1)
