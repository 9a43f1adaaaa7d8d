"""`DefaultStrategy`: one replica, for code that also runs without a TPU strategy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, final

from anytpu.errors import DataExhaustedError
from anytpu.strategy.base import Strategy
from anytpu.strategy.distributed import InputContext
from anytpu.strategy.looped import check_loop, exhausted_message
from anytpu.strategy.replicas import Replica, inside, refuse_inside

_ENDED = object()


@final
class DefaultStrategy(Strategy):
    """One replica in this process; `get_strategy` returns it when no other strategy is in scope."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas: 1."""
        return 1

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context that changes nothing."""
        return contextlib.nullcontext(self)

    def run(self, fn: Callable, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Call the function; it is not compiled."""
        refuse_inside("run", "call the function itself")
        with inside(Replica(1, axis=None)):
            return fn(*args, **(kwargs or {}))

    def run_steps(self, fn: Callable, iterator: Any, steps: int, state: Any = None) -> Any:
        """Call the function on one batch after the other; it is not compiled."""
        check_loop(fn, iterator, steps)
        outputs = None
        for step in range(steps):
            batch = next(iterator, _ENDED)
            if batch is _ENDED:
                raise DataExhaustedError(exhausted_message(step, steps, state is not None))
            if state is None:
                outputs = self.run(fn, (batch,))
            else:
                state, outputs = self.run(fn, (state, batch))
        return outputs if state is None else (state, outputs)

    def distribute_dataset(self, dataset: Any) -> Any:
        """Return the data set itself."""
        return dataset

    def distribute_datasets_from_function(self, dataset_fn: Callable) -> Any:
        """Return the data set that the function makes."""
        return dataset_fn(InputContext())

    def __repr__(self) -> str:
        return "<DefaultStrategy: one replica, on the default device of JAX>"
