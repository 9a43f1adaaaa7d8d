"""Ctrl-C and SIGTERM during training: immediate, except while a model is without its weights.

Idea: a call of an executable consumes its input arrays. A KeyboardInterrupt before the new arrays are stored would
leave the model without weights. `deferred_interrupts` delays signals in that interval. The rest of training (waiting
for batches, compiling, callbacks) runs in `immediate_interrupts` inside it, where a signal acts at once. Its effect is
the same as without anytpu: Python's handler raises KeyboardInterrupt, SIGTERM ends the process, and a handler of the
program is called.

The protocol has four phases.

1. Install. The outermost `deferred_interrupts` block replaces the handlers of SIGINT and SIGTERM by a `_Gate` each,
   which keeps the previous handler.
2. Receive. A gate stores the signal in `_pending`. In mode "act" it acts at once; in mode "hold" only a second signal
   acts at once.
3. Act. `raise_if_interrupted` clears the stored signal and calls the previous handler. It runs at the start of each
   "act" block, and at the end of each block that is not inside a "hold".
4. Restore. When the outermost block ends, the previous handlers return before a stored signal acts.

Python discards an exception that is raised in a garbage-collector callback, in a weak-reference callback or in
`__del__`, and passes it to `sys.unraisablehook`. `_UnraisableGate` recognizes there the exception of a signal, and
sends the signal again.

Several hosts stop together: `wait_for_agreement` makes a gate hold every first signal. `engine/hosts.py` tells the
number of the signal to all hosts, and each acts on it at the same place (`act_on`).

Invariants: only the main thread installs gates, because Python runs signal handlers only there. A signal that the
program ignores stays ignored. A second signal is never delayed, but a SIGTERM within 0.3 s of the first is the first. A
forked child has no call to finish, so it restores the previous handlers.
"""

from __future__ import annotations

# `signal` wraps results in enumerations, which costs 3 us a call, at every call of an executable. `_signal` does not.
import _signal  # pyright: ignore[reportMissingImports]
import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from typing import Any, Literal, Self

# SIGINT is restored last, so that a KeyboardInterrupt never finds the handlers partly restored.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_STOPPING = "\nanytpu: stopping after the call that runs now; press Ctrl-C again to stop at once"
_Mode = Literal["hold", "act"] | None
"""Mode of the innermost block: delay signals, or let them act at once; None outside all blocks."""
_SIGNAL = "_anytpu_signal"
"""Attribute of an exception that a signal handler raised: the signal number."""
_SAME_S = 0.3
"""Seconds within which a second SIGTERM counts as the first. Schedulers send it to a process and to its parents."""
_PAUSE_S = 0.01
"""Seconds before a discarded signal is sent again. An ordinary callback has ended by then; if not, it is sent again."""


class _PendingSignal:
    """State of the main thread: the mode of its innermost block, and the number of the stored signal or None.

    `is_repeated`: whether the signal in action is the second one. `is_resent`: whether it was sent again, since Python
    discarded the exception of the first. `since_s`: time of the stored signal. `waits_for_hosts`: whether a first
    signal waits until all hosts act on it. `is_agreed`: whether the signal in action is one that all hosts act on.
    """

    def __init__(self) -> None:
        self.mode: _Mode = None
        self.waits_for_hosts = False
        self.is_agreed = False
        self.number: int | None = None
        self.is_repeated = False
        self.is_resent = False
        self.since_s = 0.0


class _Gate:
    """A signal handler that stores the signal or calls the previous handler.

    A handler that the program installs during a run may call the gate that it replaced, as its previous handler. A
    replaced gate only calls the handler behind it, because a newer gate has already delayed the signal if necessary.

    Args:
        previous: handler that was installed before.
    """

    def __init__(self, previous: Any) -> None:
        self.previous = previous

    def __call__(self, number: int, frame: Any) -> None:
        """Store the signal, and act on it unless it must be delayed."""
        # 1. A replaced gate: pass the signal through.
        if _signal.getsignal(number) is not self:
            _act(self.previous, number, frame)
            return
        # 2. Store the signal. Act now in mode "act", and for a second signal; a first one waits for the running call.
        is_second = _pending.number is not None and not is_same_sigterm(number, _pending.since_s)
        if _pending.number is None:
            _pending.since_s = time.monotonic()
        _pending.number = number
        if is_second and (_pending.mode == "hold" or _pending.waits_for_hosts):
            # Restore the handlers first, so that nothing delays a third signal.
            _restore()
            _pending.is_repeated = True
            _act_on_pending()
        elif _pending.mode != "hold" and not _pending.waits_for_hosts:
            raise_if_interrupted()
        elif number == signal.SIGINT:
            # The signal may interrupt another print; a second print on the same buffer raises RuntimeError.
            with contextlib.suppress(RuntimeError, ValueError, OSError):
                print(_STOPPING, file=sys.stderr)


class _UnraisableGate:
    """A `sys.unraisablehook` that sends a signal again if Python discarded its exception.

    Args:
        previous: hook that was installed before.
    """

    def __init__(self, previous: Any) -> None:
        self.previous = previous

    def __call__(self, unraisable: Any) -> None:
        """Send the signal of a discarded exception again; pass other exceptions to the previous hook."""
        number = getattr(unraisable.exc_value, _SIGNAL, None)
        if number is None:
            self.previous(unraisable)
        else:
            # Not `threading.Thread`: this thread may hold a lock of that module while the callback runs.
            _thread.start_new_thread(_send_again, (number,))


_pending = _PendingSignal()


class _SignalBlock:
    """A `with` block that sets the mode of the main thread, and restores the outer mode at its end.

    Args:
        mode: "hold" to delay signals, "act" to let them act at once.
    """

    def __init__(self, mode: _Mode) -> None:
        self._mode: _Mode = mode

    def __enter__(self) -> Self:
        # The block has no effect outside the main thread, and an "act" block has none outside all "hold" blocks.
        is_effective = self._mode == "hold" or _pending.mode is not None
        is_mine = is_effective and threading.current_thread() is threading.main_thread()
        self._mine = _pending if is_mine else None
        if self._mine is None:
            return self
        self._before: _Mode = self._mine.mode
        try:
            # Install again in each hold inside an "act" block: the program may have replaced the handlers there.
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
        # A process forked inside the block has a new `_pending`, and its handlers are already restored.
        if self._mine is _pending:
            self._leave()
            if self._before != "hold":
                raise_if_interrupted()

    def _leave(self) -> None:
        if self._before is None:
            _restore()
        _pending.mode = self._before


def deferred_interrupts() -> contextlib.AbstractContextManager[Any]:
    """Delay SIGINT and SIGTERM until the end of the block or the next `immediate_interrupts` inside it. May be nested.

    Example:
        >>> with deferred_interrupts():
        ...     with immediate_interrupts():
        ...         batch = [1, 2]
        ...     weights = sum(batch)
    """
    return _SignalBlock("hold")


def immediate_interrupts() -> contextlib.AbstractContextManager[Any]:
    """Let SIGINT and SIGTERM act at once in a block inside `deferred_interrupts`, where no weights can be lost."""
    return _SignalBlock("act")


def raise_if_interrupted() -> None:
    """Act on a stored signal: raise KeyboardInterrupt, or end the process as SIGTERM does.

    Any thread may call this; only the main thread acts. A signal that waits for the other hosts stays stored.
    """
    if _pending.number is not None and not _pending.waits_for_hosts and _is_main():
        _act_on_pending()


def wait_for_agreement() -> None:
    """Let each first signal wait, from now on, until all hosts act on it."""
    _pending.waits_for_hosts = True


def pending_signal() -> int:
    """Return the number of the signal that waits for the other hosts, or 0."""
    return (_pending.waits_for_hosts and _pending.number) or 0


def keep_for_hosts(number: int) -> bool:
    """Store a signal that a handler has received, and return True; False if the handler must act on it now."""
    is_second = _pending.number is not None and not is_same_sigterm(number, _pending.since_s)
    if not _pending.waits_for_hosts or _pending.is_agreed or _pending.is_repeated or is_second:
        return False
    if _pending.number is None:
        _pending.since_s = time.monotonic()
    _pending.number = number
    return True


def act_on(number: int) -> None:
    """Act on a signal that this host or another one has received; only the main thread acts."""
    if _is_main():
        _pending.number, _pending.is_agreed = number, True
        try:
            _act_on_pending()
        finally:
            _pending.is_agreed = False


def _act_on_pending() -> None:
    assert _pending.number is not None
    # Clear the signal first: the handler may raise, and the signal must act once only.
    number, _pending.number = _pending.number, None
    handler = _signal.getsignal(number)
    # A gate would store the signal again, so all gates are skipped.
    while isinstance(handler, _Gate):
        handler = handler.previous
    _act(handler, number, None)


def is_same_sigterm(number: int, since_s: float) -> bool:
    """Return whether a second signal is the first once more: SIGTERM to all processes, which a parent passes on too."""
    return number == signal.SIGTERM and time.monotonic() - since_s < _SAME_S


def is_repeated_signal() -> bool:
    """Return whether the signal that a handler acts on is the second one: the first still waited for a call."""
    return _pending.is_repeated


def take_resent() -> bool:
    """Return whether a signal was sent again, because Python discarded its exception, since the last call."""
    is_resent, _pending.is_resent = _pending.is_resent, False
    return is_resent


def _act(handler: Any, number: int, frame: Any) -> None:
    """Call a Python handler, or send the signal again with the system's default handler."""
    if callable(handler):
        try:
            handler(number, frame)
        except BaseException as error:
            # `_UnraisableGate` recognizes the exception by this attribute.
            vars(error)[_SIGNAL] = number
            raise
        return
    # With the default handler in place, the process ends by this signal.
    _signal.signal(number, handler)
    os.kill(os.getpid(), number)


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def _send_again(number: int) -> None:
    """Send a signal to the main thread after a pause; runs in a thread of its own."""
    time.sleep(_PAUSE_S)
    _pending.is_resent = True
    if hasattr(signal, "pthread_kill"):
        # This also interrupts a blocking system call of the main thread.
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        _thread.interrupt_main(signal.Signals(number))


def _install() -> None:
    """Put a gate before each handler and before the unraisable hook, where there is none."""
    if not isinstance(sys.unraisablehook, _UnraisableGate):
        sys.unraisablehook = _UnraisableGate(sys.unraisablehook)
    for number in _SIGNALS:
        handler = _signal.getsignal(number)
        # None: a handler that was not installed from Python, which Python cannot restore.
        if not isinstance(handler, _Gate) and handler is not None and handler != signal.SIG_IGN:
            _signal.signal(number, _Gate(handler))


def _restore() -> None:
    """Restore the previous handlers, except where the program has installed another handler since."""
    for number in _SIGNALS:
        while isinstance(handler := _signal.getsignal(number), _Gate):
            _signal.signal(number, handler.previous)
    while isinstance(sys.unraisablehook, _UnraisableGate):
        sys.unraisablehook = sys.unraisablehook.previous


def _reset_after_fork() -> None:
    """Restore the handlers in a forked child, and discard the parent's stored signal."""
    global _pending
    _restore()
    _pending = _PendingSignal()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
