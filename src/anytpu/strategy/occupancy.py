"""`Occupancy`: a lock that lets one thread at a time run a model.

Idea: a call donates the values of the variables and returns new ones. Two threads that train the same variables would
donate each other's values, and the weights would be lost. So long calls acquire the lock, and a second thread gets an
error that names the first call. The lock is reentrant: a callback of `fit` may call `predict`.
"""

from __future__ import annotations

import threading
from typing import Any, Self, final

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

    def by(self, what: str) -> _OccupiedContext:
        """Return a context in which the call `what` runs the model, such as "fit of 'digits'".

        Raises:
            StrategyError: (on entering) another thread runs it.
        """
        return _OccupiedContext(self, what)

    def enter(self, what: str) -> None:
        """Begin a call; `leave` ends it.

        Raises:
            StrategyError: another thread runs the model.
        """
        if not self._lock.acquire(blocking=False):
            raise in_use_error(what, next(iter(self._stack), what), self._thread)
        self._thread = threading.current_thread()
        self._stack.append(what)

    def leave(self) -> None:
        """End the innermost call."""
        self._stack.pop()
        self._lock.release()


class _OccupiedContext:
    def __init__(self, occupancy: Occupancy, what: str) -> None:
        self._occupancy, self._what = occupancy, what

    def __enter__(self) -> Self:
        self._occupancy.enter(self._what)
        return self

    def __exit__(self, *_: Any) -> None:
        self._occupancy.leave()


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
