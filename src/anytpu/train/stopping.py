"""`StopSignals`: the first SIGTERM or Ctrl-C saves the run and ends it with a status of its own.

Idea: a spot machine is taken back 30 seconds after SIGTERM. The run saves its state between two steps. While it waits
for data, compiles or evaluates, the state of the last step is still whole, and is saved at once. Otherwise the step and
its callbacks are finished first. A second signal ends the process at once.

Rule: a signal handler that the program installed is left in place. In an interactive Python, Ctrl-C raises
KeyboardInterrupt after the save.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn, Self

from anytpu._restarts import STOPPED_STATUS
from anytpu.engine.hosts import current_hosts
from anytpu.engine.interrupts import is_repeated_signal, is_same_sigterm, keep_for_hosts, take_resent


class StopSignals:
    """The signals that stop one run. A context manager.

    Args:
        save: saves the run, and returns a sentence about it.
        is_ready: returns whether the state of the last step is whole now.

    Attributes:
        number: the signal that was received, or None.
    """

    def __init__(self, save: Callable[[], str], is_ready: Callable[[], bool]) -> None:
        self._save, self._is_ready = save, is_ready
        self._replaced: dict[int, Any] = {}
        self._owner = os.getpid()
        self._is_stopped = False
        self._received_s = 0.0
        self.number: int | None = None

    def __enter__(self) -> Self:
        """Replace the default handlers of SIGTERM and SIGINT."""
        if threading.current_thread() is threading.main_thread():
            for number, default in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
                if signal.getsignal(number) == default:
                    self._replaced[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the handlers, unless the program has installed others since, or SIGTERM has stopped the run."""
        # The handler stays until Python shuts down: it ignores the same SIGTERM, which a parent may send again.
        if self._is_stopped and self.number == signal.SIGTERM:
            return
        for number, previous in self._replaced.items():
            if signal.getsignal(number) == self._receive:
                signal.signal(number, previous)

    def stop(self) -> NoReturn:
        """Save the run, and end the process with `STOPPED_STATUS`."""
        name = signal.Signals(self.number or signal.SIGTERM).name
        if not self._is_stopped:
            saved = self._save()
            if current_hosts().is_first:
                _say(f"{name}: {saved}. The same command continues there (exit status {STOPPED_STATUS})")
        self._is_stopped = True
        if self.number == signal.SIGINT and hasattr(sys, "ps1"):
            raise KeyboardInterrupt
        if self.number == signal.SIGTERM:
            # Python shuts down with the default handlers. The same SIGTERM, sent again by a parent, changes no status.
            atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(STOPPED_STATUS)

    def _receive(self, number: int, frame: Any) -> None:
        if os.getpid() != self._owner:  # A forked child has no run.
            _end_by(number)
            return
        if keep_for_hosts(number):  # All hosts stop after the same step.
            return
        # After a stop whose exception Python discarded, the signal comes again, and the stop is repeated.
        is_resent = take_resent() and self._is_stopped
        if self.number is not None and is_same_sigterm(number, self._received_s) and not is_resent:
            return
        if is_repeated_signal() or (self.number is not None and not is_resent):
            _end_by(number)
            return
        self.number, self._received_s = number, time.monotonic()
        if self._is_ready():
            self.stop()
        _say(f"{signal.Signals(number).name}: the step that runs is finished first; send it again to stop at once")


def _end_by(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _say(message: str) -> None:
    # The signal may have interrupted another print; a second print on the same buffer raises RuntimeError.
    with contextlib.suppress(RuntimeError, ValueError, OSError):
        print(f"\nanytpu: {message}.", file=sys.stderr, flush=True)
