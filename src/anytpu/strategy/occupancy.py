"""`Occupancy`: a lock that lets one thread at a time run a model.

Idea: a call donates the values of the variables and returns new ones. Two threads that train the same variables would
donate each other's values, and the weights would be lost. So long calls acquire the lock, and a second thread gets an
error that names the first call. The lock is reentrant: a callback of `fit` may call `predict`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import final

from anytpu.errors import StrategyError


@final
class Occupancy:
    """The thread that runs a model, and its nested calls.

    Example:
        >>> occupancy = Occupancy()
        >>> with occupancy.by("fit of 'digits'"), occupancy.by("predict of 'digits'"):
        ...     occupancy.what
        "predict of 'digits'"
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._stack: list[str] = []
        self._thread = threading.current_thread()

    @property
    def what(self) -> str:
        """The innermost call that runs the model now."""
        return self._stack[-1]

    @contextlib.contextmanager
    def by(self, call: str) -> Iterator[None]:
        """Run the model in a block, for a call such as "fit of 'digits'".

        Raises:
            StrategyError: another thread runs it.
        """
        if not self._lock.acquire(blocking=False):
            raise in_use_error(call, next(iter(self._stack), call), self._thread)
        self._thread = threading.current_thread()
        self._stack.append(call)
        try:
            yield
        finally:
            self._stack.pop()
            self._lock.release()


def in_use_error(called: str, runs: str, thread: threading.Thread) -> StrategyError:
    """Return the error for a call on variables that another thread uses.

    Args:
        called: the rejected call.
        runs: the call that uses the variables.
        thread: the thread of that call.
    """
    return StrategyError(
        f"{called} was called in the thread {threading.current_thread().name!r} while {runs} runs in the thread "
        f"{thread.name!r}, on the same variables. One thread at a time can use them: wait for the other one with "
        "thread.join(), or give each thread a model of its own with keras.models.clone_model(model)"
    )
