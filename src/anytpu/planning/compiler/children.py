"""The children of this process: borrowed for one compilation, given back, all killed at its end.

Rule: a child is borrowed by one thread at a time. What ends a loan badly (a crash, a time-out, Ctrl-C) ends the child.
A process that is forked off has none.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator

from anytpu.planning.compiler.parent import Child

_LOCK = threading.Lock()
_IDLE: list[Child] = []
_LENT: list[Child] = []
_NOT_OURS: list[Child] = []


@contextlib.contextmanager
def borrowed() -> Iterator[Child]:
    """Lend a child, a warm one where there is one."""
    child = _taken()
    try:
        yield child
    except BaseException:
        child.kill()
        raise
    else:
        with _LOCK:
            _IDLE.append(child)
    finally:
        with _LOCK:
            _LENT.remove(child)


def close() -> None:
    """Kill all children, also those that compile: whoever waits for one is told that it ended."""
    with _LOCK:
        idle = _IDLE.copy()
        _IDLE.clear()
        for child in _LENT:
            child.end()
    for child in idle:
        child.kill()


def _taken() -> Child:
    with _LOCK:
        while _IDLE:
            child = _IDLE.pop()
            if child.is_alive:
                break
            child.kill()
        else:
            child = Child()
        _LENT.append(child)
        return child


def _forget() -> None:
    global _LOCK
    _LOCK = threading.Lock()
    _NOT_OURS.extend([*_IDLE, *_LENT])  # Kept, or their end would be taken for an end of ours.
    _IDLE.clear()
    _LENT.clear()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
