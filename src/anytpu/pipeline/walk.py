"""A walk over a data set: its batches in order, and the position between them.

Idea: everything random in a data set is drawn from its seeds and from the number of the pass, so the position is a few
integers; whoever saves them gets the same batches again, bit for bit, in another process as well.

Rule: a position is plain JSON, and names the data set that it was saved from: another one refuses it.
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

from anytpu.engine.interrupts import deferred_interrupts
from anytpu.errors import DataError

Tree = Any
Position = dict[str, Any]

_CLOSING_S = 2.0
_OPEN: weakref.WeakSet[Walk] = weakref.WeakSet()


@final
class Walk(Iterator):
    """An iterator over one pass of a data set.

    Args:
        name: what the data set is, as a position names it.
        make: makes the stream of a pass.
        number: the number of the pass.
        length: how many elements it has; None when that is not known, or without end.
        on_end: called with the number of a pass when its last element was taken.
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
        """Return the position after the last element that was taken, as plain JSON."""
        position = json.loads(json.dumps(self._iterator.get_state(), default=_plain))
        return {"dataset": self._name, "pass": self.number, "taken": self.taken, "position": position}

    def set_state(self, state: Position) -> None:
        """Go to a position: the next element is the one that came next where it was saved.

        Raises:
            DataError: it is no position, or that of another data set.
        """
        check_position(state, self._name)
        self.close()
        self._begin(state["pass"], state["taken"])
        if state["taken"]:
            self._iterator.set_state(state["position"])

    def close(self) -> None:
        """End the threads and processes of the walk now. One that nobody holds any more ends them itself."""
        if hasattr(self._iterator, "close"):
            self._iterator.close()

    def leave(self) -> None:
        """End the threads and processes of the walk, and do not wait: one may be in a function that never returns."""
        with deferred_interrupts():
            iterator, self._iterator = self._iterator, iter(())
            if not self._has_ended and hasattr(iterator, "close"):
                threading.Thread(target=iterator.close, name="anytpu leaves a walk", daemon=True).start()

    def _end(self) -> None:
        self.close()
        self._iterator = iter(())


@atexit.register
def _close_all() -> None:
    """End the threads and processes of all walks while the interpreter is still whole.

    grain's own clean-up, when an iterator is deleted, would come after that and complain. A thread that waits for
    something that never comes is left.
    """
    closing = [threading.Thread(target=walk._end, daemon=True) for walk in _OPEN]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(_CLOSING_S)
    gc.collect()


def check_position(state: Any, name: str) -> None:
    """Refuse what is not a position in the data set of this name."""
    if not isinstance(state, dict) or not {"dataset", "pass", "taken", "position"} <= state.keys():
        raise DataError(f"a position is what get_state() of a data set's iterator returned, not {state!r}")
    if state["dataset"] != name:
        raise DataError(
            f"the position was saved from another data set: from {state['dataset']}, and this is {name}. Build the "
            "data set as it was, its seeds and sizes too"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} in the position of a data set is not plain JSON")
