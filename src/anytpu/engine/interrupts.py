"""Ctrl-C and SIGTERM during training: read between calls, never in the middle of one.

Idea: a signal that lands while arrays are handed over would leave a model without its weights. So while training runs
the handlers only set a flag, and the loop looks at it between two calls, when the model is whole. Then what was there
before gets the signal: Python's own handlers (KeyboardInterrupt; the end of the process), or the program's.

Rule: signals belong to the main thread; elsewhere nothing is installed. A signal that was ignored stays ignored. A
second one does not wait. A process that is forked meanwhile has nothing to finish: it gets the handlers that were there
before.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STOPPING = "\nanytpu: stopping after the call that runs now; press Ctrl-C again to stop at once"


class _Pending:
    """The signal that came and was not acted on yet, and the handlers that were there before."""

    def __init__(self) -> None:
        self.depth = 0
        self.number: int | None = None
        self.previous: dict[int, Any] = {}


_pending = _Pending()


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Hold SIGINT and SIGTERM back until `raise_if_interrupted` or the end of the block. May be nested."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mine = _pending
    if mine.depth == 0:
        _install()
    mine.depth += 1
    try:
        yield
    finally:
        mine.depth -= 1
        # In a process that was forked inside the block it is another one, and all is put back already.
        if mine.depth == 0 and mine is _pending:
            _restore()
            raise_if_interrupted()


def raise_if_interrupted() -> None:
    """Act on a signal that was held back: raise KeyboardInterrupt, or end the process as SIGTERM does.

    Call it between two calls of an executable, from any thread; only the main thread acts.
    """
    if _pending.number is None or threading.current_thread() is not threading.main_thread():
        return
    number, _pending.number = _pending.number, None
    previous = _pending.previous.get(number, signal.getsignal(number))
    if callable(previous):
        previous(number, None)
        return
    _restore()
    os.kill(os.getpid(), number)


def _note(number: int, frame: Any) -> None:
    is_second, _pending.number = _pending.number is not None, number
    if is_second:
        _restore()
        raise_if_interrupted()
    elif number == signal.SIGINT:
        # The signal may have come in the middle of a line that is being printed.
        with contextlib.suppress(RuntimeError, ValueError, OSError):
            print(_STOPPING, file=sys.stderr)


def _install() -> None:
    _pending.number = None
    for number in _SIGNALS:
        # None: a handler that is not Python's, and that Python could not put back.
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            _pending.previous[number] = signal.signal(number, _note)


def _restore() -> None:
    while _pending.previous:
        signal.signal(*_pending.previous.popitem())


def _start_anew() -> None:
    """Put the handlers back in a process that was just forked, and forget what its parent waits for."""
    global _pending
    _restore()
    _pending = _Pending()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
