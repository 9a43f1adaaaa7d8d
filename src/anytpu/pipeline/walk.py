"""An iterator over a data set that can save and restore its position.

Idea: everything random in a data set depends only on its seeds and the index of the pass. So a position is a few
integers, and restoring it gives the same batches bit for bit, in another process too.

Rule: a position is plain JSON and contains the text of its data set; another data set rejects it.
"""

from __future__ import annotations

import atexit
import gc
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, final

import grain
import numpy as np
from grain.multiprocessing import SharedMemoryArray

from anytpu.engine.interrupts import deferred_interrupts
from anytpu.errors import DataError

Tree = Any
Position = dict[str, Any]

_CLOSING_S = 2.0
_OPEN: weakref.WeakSet[ElementWalk] = weakref.WeakSet()


@final
class ElementWalk(Iterator):
    """An iterator over one pass of a data set.

    Args:
        name: the text of the data set, stored in positions.
        make: builds the stream of a pass from its index.
        number: index of the pass.
        length: number of elements in the pass; None if unknown or endless.
        on_end: called with the index of the pass after its last element.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[int], grain.IterDataset],
        number: int,
        length: int | None,
        on_end: Callable[[int], None],
    ) -> None:
        self._name, self._make, self._length, self._on_end = name, make, length, on_end
        self._begin(number, taken=0)
        _OPEN.add(self)

    def _begin(self, number: int, taken: int) -> None:
        self.number = number
        self.taken = taken
        self._has_ended = False
        self._iterator: Any = iter(self._make(number))

    def __next__(self) -> Tree:
        try:
            element = next(self._iterator)
        except StopIteration:
            self._has_ended = True
            self._on_end(self.number)
            raise
        self.taken += 1
        if self.taken == self._length:
            self._on_end(self.number)
        return element

    def get_state(self) -> Position:
        """Return the position after the last element, as plain JSON."""
        position = json.loads(json.dumps(self._iterator.get_state(), default=_plain))
        return {"dataset": self._name, "pass": self.number, "taken": self.taken, "position": position}

    def set_state(self, state: Position) -> None:
        """Restore a position: the next element is the one that followed when it was saved.

        Raises:
            DataError: `state` is not a position, or is that of another data set.
        """
        check_position(state, self._name)
        self.close()
        self._begin(state["pass"], state["taken"])
        if state["taken"]:
            self._iterator.set_state(state["position"])

    def close(self) -> None:
        """End the threads and processes of the walk now. A walk without references does so itself."""
        if hasattr(self._iterator, "close"):
            self._iterator.close()

    def leave(self) -> None:
        """End the threads and processes of the walk without waiting: a user's function may never return."""
        if self._has_ended:  # Also at the interpreter's end, when the names of this module are None.
            self._iterator = iter(())
            return
        with deferred_interrupts():
            iterator, self._iterator = self._iterator, iter(())
            if hasattr(iterator, "close"):
                threading.Thread(target=iterator.close, name="anytpu leaves a walk", daemon=True).start()

    def _end(self) -> None:
        self.close()
        self._iterator, self._has_ended = iter(()), True


@atexit.register
def _close_all() -> None:
    """End the threads and processes of all walks before the interpreter shuts down.

    grain's own clean-up runs when an iterator is deleted, which is too late and prints errors. A thread that does not
    end within `_CLOSING_S` seconds is abandoned.
    """
    closing = [threading.Thread(target=walk._end, daemon=True) for walk in _OPEN]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(_CLOSING_S)
    gc.collect()
    # grain 0.2.18 frees shared memory in a thread, which the exit would stop: Python would warn of leaked objects.
    freeing, SharedMemoryArray._del_thread_pool = SharedMemoryArray._del_thread_pool, None
    if freeing is not None:
        freeing.close()
        freeing.join()


def check_position(state: Any, name: str) -> None:
    """Reject a value that is not a position in the data set of this name."""
    if not isinstance(state, dict) or not {"dataset", "pass", "taken", "position"} <= state.keys():
        raise DataError(f"a position must be the result of get_state() of a data set's iterator, not {state!r}")
    if state["dataset"] != name:
        raise DataError(
            f"the position was saved from another data set, {state['dataset']}; this is {name}. Build the data set "
            "with the same steps, seeds and sizes"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} in the position of a data set is not plain JSON")
