"""Ctrl-C and SIGTERM during training: at once, but for the moments in which a model is without its weights.

Idea: a call of an executable consumes the arrays that it is handed; a KeyboardInterrupt between it and the new arrays
would leave a model without weights. `deferred_interrupts` holds signals back for so long. Whatever else training does
(wait for batches, compile, call callbacks) is in `immediate_interrupts` inside of it, where a signal acts at once. It
acts as it would without anytpu: Python's own handler raises KeyboardInterrupt, SIGTERM ends the process, and a handler
of the program is called.

Python ignores an exception that is raised in a callback of the garbage collector, in a callback of a weak reference or
in `__del__`, and passes it to `sys.unraisablehook`. There the exception of a signal is recognized, and the signal is
sent again.

Rule: signals belong to the main thread; elsewhere nothing is installed. A signal that was ignored stays ignored. A
second one does not wait. A process that is forked meanwhile has nothing to finish: it gets the handlers that were there
before.
"""

from __future__ import annotations

# The functions of `signal` make enumerations of what they return: 3 us each, at every call of an executable.
import _signal  # pyright: ignore[reportMissingImports]
import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any, Literal, Self

# SIGINT is put back last: KeyboardInterrupt then finds nothing half done.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STOPPING = "\nanytpu: stopping after the call that runs now; press Ctrl-C again to stop at once"
_Mode = Literal["hold", "act"] | None
_SIGNAL = "_anytpu_signal"
"""The attribute of an exception that a signal raised: the number of the signal."""
_PAUSE_S = 0.01
"""Time until an ignored signal is sent again: Python is out of an ordinary callback by then; if not, it tries again."""


class _Pending:
    """The signal that came and was not acted on yet, and whether signals are held back: None outside of all blocks."""

    def __init__(self) -> None:
        self.mode: _Mode = None
        self.number: int | None = None


class _Gate:
    """Stands before the handler of a signal that was there before.

    A handler that the program installs during a run may call the gate that it replaced, as its previous handler. Such a
    gate acts as the handler that it stands for: the signal was held back, where need be, before the newer handler.

    Args:
        previous: that handler.
    """

    def __init__(self, previous: Any) -> None:
        self.previous = previous

    def __call__(self, number: int, frame: Any) -> None:
        """Note the signal where signals are held back; else act on it."""
        if _signal.getsignal(number) is not self:
            _act(self.previous, number, frame)
            return
        is_second, _pending.number = _pending.number is not None, number
        if _pending.mode != "hold":
            raise_if_interrupted()
        elif is_second:
            _restore()
            raise_if_interrupted()
        elif number == signal.SIGINT:
            # The signal may have come in the middle of a line that is being printed.
            with contextlib.suppress(RuntimeError, ValueError, OSError):
                print(_STOPPING, file=sys.stderr)


class _UnraisableGate:
    """Stands before the `sys.unraisablehook` that was there before.

    Args:
        previous: that hook.
    """

    def __init__(self, previous: Any) -> None:
        self.previous = previous

    def __call__(self, unraisable: Any) -> None:
        """Send a signal again whose exception Python ignores; pass anything else on."""
        number = getattr(unraisable.exc_value, _SIGNAL, None)
        if number is None:
            self.previous(unraisable)
        else:
            # Not `threading.Thread`: the callback may have come while this thread holds a lock of that module.
            _thread.start_new_thread(_send_again, (number,))


_pending = _Pending()


class _Block:
    """A `with` block in which signals are held back, or act at once.

    Args:
        mode: which of the two.
    """

    def __init__(self, mode: _Mode) -> None:
        self._mode: _Mode = mode

    def __enter__(self) -> Self:
        # Elsewhere than in the main thread, and in a block to act in that is not in one to hold, nothing is done.
        is_effective = self._mode == "hold" or _pending.mode is not None
        self._mine = _pending if is_effective and _is_main() else None
        if self._mine is None:
            return self
        self._before: _Mode = self._mine.mode
        try:
            # Handlers that the program has put in place since are held back too.
            if self._mode == "hold" and self._before != "hold":
                _install()
            self._mine.mode = self._mode
            if self._mode == "act":
                raise_if_interrupted()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        # In a process that was forked inside the block it is another one, and all is put back already.
        if self._mine is _pending:
            self._leave()
            if self._before != "hold":
                raise_if_interrupted()

    def _leave(self) -> None:
        if self._before is None:
            _restore()
        _pending.mode = self._before


def deferred_interrupts() -> contextlib.AbstractContextManager[Any]:
    """Hold SIGINT and SIGTERM back until the end of the block, or of a block inside that lets them act. May be nested.

    Example:
        >>> with deferred_interrupts():
        ...     with immediate_interrupts():
        ...         batch = [1, 2]
        ...     weights = sum(batch)
    """
    return _Block("hold")


def immediate_interrupts() -> contextlib.AbstractContextManager[Any]:
    """Let SIGINT and SIGTERM act at once in a block inside `deferred_interrupts`, since nothing is at stake in it."""
    return _Block("act")


def raise_if_interrupted() -> None:
    """Act on a signal that was held back: raise KeyboardInterrupt, or end the process as SIGTERM does.

    May be called from any thread; only the main thread acts.
    """
    if _pending.number is None or not _is_main():
        return
    number, _pending.number = _pending.number, None
    handler = _signal.getsignal(number)
    while isinstance(handler, _Gate):
        handler = handler.previous
    _act(handler, number, None)


def _act(handler: Any, number: int, frame: Any) -> None:
    """Call a handler, or let the system do what it does by default."""
    if callable(handler):
        try:
            handler(number, frame)
        except BaseException as error:
            vars(error)[_SIGNAL] = number
            raise
        return
    _signal.signal(number, handler)
    os.kill(os.getpid(), number)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _send_again(number: int) -> None:
    time.sleep(_PAUSE_S)
    if hasattr(signal, "pthread_kill"):
        # It ends a system call that the main thread waits in.
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        _thread.interrupt_main(signal.Signals(number))


def _install() -> None:
    if not isinstance(sys.unraisablehook, _UnraisableGate):
        sys.unraisablehook = _UnraisableGate(sys.unraisablehook)
    for number in _SIGNALS:
        handler = _signal.getsignal(number)
        # None: a handler that is not Python's, and that Python could not put back.
        if not isinstance(handler, _Gate) and handler is not None and handler != signal.SIG_IGN:
            _signal.signal(number, _Gate(handler))


def _restore() -> None:
    """Put back the handlers that were there before, where the program has not put others in place since."""
    for number in _SIGNALS:
        while isinstance(handler := _signal.getsignal(number), _Gate):
            _signal.signal(number, handler.previous)
    while isinstance(sys.unraisablehook, _UnraisableGate):
        sys.unraisablehook = sys.unraisablehook.previous


def _start_anew() -> None:
    """Put the handlers back in a process that was just forked, and forget what its parent waits for."""
    global _pending
    _restore()
    _pending = _Pending()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
