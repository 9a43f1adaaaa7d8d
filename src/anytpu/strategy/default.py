"""`DefaultStrategy`: one replica, for code that does not know whether it runs on a TPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, final

from anytpu.strategy.base import Strategy
from anytpu.strategy.replicas import Replica, inside, refuse_inside


@final
class DefaultStrategy(Strategy):
    """One replica, where the process stands: what `get_strategy` returns when no other strategy is in scope."""

    @property
    def num_replicas_in_sync(self) -> int:
        """One."""
        return 1

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that changes nothing."""
        return contextlib.nullcontext(self)

    def run(self, fn: Callable, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Call the function; it is not compiled."""
        refuse_inside("run", "call the function itself")
        with inside(Replica(1, axis=None)):
            return fn(*args, **(kwargs or {}))

    def __repr__(self) -> str:
        return "<DefaultStrategy: one replica, on the default device of JAX>"
