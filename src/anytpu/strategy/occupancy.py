"""`Occupancy`: one thread at a time runs a model.

Idea: a call consumes the values of the variables and gives back new ones. Two threads that train the same variables
would consume each other's, and the weights would be gone. So whatever runs a model for long says so, and a second
thread gets an error that names it. The same thread may come again: a callback of `fit` may call `predict`.
"""

from __future__ import annotations

import threading
from typing import Any, Self, final

from anytpu.errors import StrategyError


@final
class Occupancy:
    """Which thread runs a model, and what it does there.

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
        """What runs the model now: the innermost call."""
        return self._stack[-1]

    def by(self, what: str) -> _Turn:
        """Return a context in which `what` runs the model, as "fit of 'digits'".

        Raises:
            StrategyError: (on entering) another thread runs it.
        """
        return _Turn(self, what)

    def enter(self, what: str) -> None:
        """Begin what `leave` ends."""
        if not self._lock.acquire(blocking=False):
            raise in_use(what, next(iter(self._stack), what), self._thread)
        self._thread = threading.current_thread()
        self._stack.append(what)

    def leave(self) -> None:
        """End what was begun last."""
        self._stack.pop()
        self._lock.release()


class _Turn:
    def __init__(self, occupancy: Occupancy, what: str) -> None:
        self._occupancy, self._what = occupancy, what

    def __enter__(self) -> Self:
        self._occupancy.enter(self._what)
        return self

    def __exit__(self, *_: Any) -> None:
        self._occupancy.leave()


def in_use(called: str, runs: str, thread: threading.Thread) -> StrategyError:
    """Return the error of a call on variables that another thread uses."""
    return StrategyError(
        f"{called} was called in the thread {threading.current_thread().name!r} while {runs} runs in the thread "
        f"{thread.name!r}, on the same variables. One thread at a time can use them: wait for the other one with "
        "thread.join(), or give each thread a model of its own with keras.models.clone_model(model)"
    )
