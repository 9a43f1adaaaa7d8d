"""Streams that grain lacks: generators, shuffles in windows, strides, chains, interleaved data sets, a cache.

Idea: as in `nodes.py`, for elements that can only be read in order. Some of these nodes exist in grain in another
form. Its shuffle is nine times slower, and its repeat replays one order. Its interleave has no blocks and needs an
index, and its cache ends with its iterator.

Rule: the state of an iterator, its position, is plain JSON. A prefetching thread takes it after each element, so it is
cheap, and later steps do not change it.

This file imports grain; only modules that build a data set import this file.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import grain
import jax
import numpy as np

from anytpu.pipeline.caches import Append, Cache
from anytpu.pipeline.nodes import Node, frozen, permutation

Tree = Any


class Stream(grain.IterDataset):
    """A stream that one of the iterators below reads.

    Args:
        iterator: the iterator's class.
        *settings: its arguments after those of `parent`.
        parent: the stream whose iterator is its first argument, or None.
    """

    def __init__(
        self, iterator: Callable[..., grain.DatasetIterator], *settings: Any, parent: grain.IterDataset | None = None
    ) -> None:
        super().__init__(*() if parent is None else (parent,))
        self._iterator, self._settings = iterator, settings

    def __iter__(self) -> grain.DatasetIterator:
        return self._iterator(*map(iter, self.parents), *self._settings)


class Generated(grain.DatasetIterator):
    """The elements of a generator function. A position is restored by running the function again up to it.

    Args:
        function: function without arguments that returns an iterator.
    """

    def __init__(self, function: Callable[[], Iterable[Tree]]) -> None:
        super().__init__()
        self._function = function
        self._taken = 0
        self._iterator: Iterator[Tree] | None = None

    def __next__(self) -> Tree:
        if self._iterator is None:
            self._iterator = itertools.islice(self._function(), self._taken, None)
        element = next(self._iterator)
        self._taken += 1
        # The function may fill the same array again.
        return jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, element)

    def get_state(self) -> dict[str, Any]:
        """Return the position after the last element."""
        return {"taken": self._taken}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a position."""
        self._taken, self._iterator = state["taken"], None


class ShuffledWindows(grain.DatasetIterator):
    """A shuffle of a stream in windows, each with its own permutation.

    The saved position is that of the window's beginning: restoring it reads the window again.

    Args:
        parent: the stream.
        size: number of elements in a window.
        seeds: seeds of the orders: the step's, and the index of the pass.
    """

    def __init__(self, parent: grain.DatasetIterator, size: int, seeds: tuple[int, int]) -> None:
        super().__init__(parent)
        self._iterator = parent
        self._size, self._seeds = size, seeds
        self._window = self._taken = 0
        self._start = copy.deepcopy(parent.get_state())
        self._remaining: list[Tree] = []  # the rest of the window, last element first
        self._is_last = False

    def __next__(self) -> Tree:
        if not self._remaining and not self._is_last:
            if self._taken:
                self._window, self._taken = self._window + 1, 0
                self._start = copy.deepcopy(self._iterator.get_state())
            self._fill()
        if not self._remaining:
            raise StopIteration
        self._taken += 1
        return self._remaining.pop()

    def _fill(self) -> None:
        window = list(itertools.islice(self._iterator, self._size))
        order = permutation(len(window), *self._seeds, self._window)
        # Without what was taken before the position, and reversed, because `pop` takes the last one.
        self._remaining = [window[index] for index in order[self._taken :][::-1]]
        self._is_last = len(window) < self._size

    def get_state(self) -> dict[str, Any]:
        """Return the position after the last element."""
        return {"start": self._start, "window": self._window, "taken": self._taken}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a position."""
        self._start = copy.deepcopy(state["start"])
        self._iterator.set_state(copy.deepcopy(state["start"]))
        self._window, self._taken = state["window"], state["taken"]
        self._fill()


class Strided(grain.DatasetIterator):
    """Every `stride`-th element of a stream.

    Args:
        parent: the stream.
        start: index of the first element: the number of elements to skip.
        stride: 1 for all further elements.
    """

    def __init__(self, parent: grain.DatasetIterator, start: int, stride: int) -> None:
        super().__init__(parent)
        self._iterator = parent
        self._start, self._stride = start, stride
        self._is_inside = False

    def __next__(self) -> Tree:
        for _ in range(self._stride - 1 if self._is_inside else self._start):
            next(self._iterator)
        element = next(self._iterator)
        self._is_inside = True
        return element

    def get_state(self) -> dict[str, Any]:
        """Return the position after the last element."""
        return {"parent": self._iterator.get_state(), "is_inside": self._is_inside}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a position."""
        self._iterator.set_state(state["parent"])
        self._is_inside = state["is_inside"]


class Chained(grain.DatasetIterator):
    """Streams one after the other, each built when it begins: the passes of a repetition, or different data sets.

    Args:
        make: builds a stream from its index.
        count: number of streams; None: endless, up to the first empty stream.
    """

    def __init__(self, make: Callable[[int], grain.IterDataset], count: int | None) -> None:
        super().__init__()
        self._make, self._count = make, count
        self._completed, self._is_empty = 0, True
        self._iterator: grain.DatasetIterator | None = None

    def __next__(self) -> Tree:
        while self._count is None or self._completed < self._count:
            if self._iterator is None:
                self._iterator, self._is_empty = iter(self._make(self._completed)), True
            for element in self._iterator:
                self._is_empty = False
                return element
            if self._is_empty and self._count is None:
                break
            self._end_stream()
            self._completed += 1
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        """Return the position after the last element."""
        stream = None if self._iterator is None else self._iterator.get_state()
        return {"done": self._completed, "is_empty": self._is_empty, "pass": stream}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a position."""
        self._end_stream()
        self._completed, self._is_empty = state["done"], state["is_empty"]
        if state["pass"] is not None:
            self._iterator = iter(self._make(self._completed))
            self._iterator.set_state(state["pass"])

    def _end_stream(self) -> None:
        if self._iterator is not None:
            self._iterator.close()
            self._iterator = None

    def close(self) -> None:
        """End the threads of the streams."""
        super().close()
        self._end_stream()


class Interleaved(grain.DatasetIterator):
    """The elements of several streams at a time, in turns; a stream that ends is replaced by the next.

    Args:
        parent: the elements that the streams are made from.
        open_stream: builds the stream of an element.
        cycle_length: number of streams that are open at a time.
        block_length: number of elements taken from a stream in its turn.
    """

    def __init__(
        self,
        parent: grain.DatasetIterator,
        open_stream: Callable[[Tree], grain.IterDataset],
        cycle_length: int,
        block_length: int,
    ) -> None:
        super().__init__(parent)
        self._iterator, self._open_stream, self._block_length = parent, open_stream, block_length
        # For each open stream, the parent's state before the element that it is made from, and its iterator.
        self._slots: list[tuple[Any, grain.DatasetIterator] | None] = [None] * cycle_length
        self._slot = self._taken = 0
        self._has_ended = False

    def __next__(self) -> Tree:
        while True:
            opened = self._slots[self._slot]
            if opened is not None:
                for element in opened[1]:
                    self._taken += 1
                    if self._taken == self._block_length:
                        self._advance()
                    return element
                opened[1].close()
                self._slots[self._slot] = None
                self._advance()
            elif not self._has_ended:
                self._slots[self._slot] = self._open_next()
                self._has_ended = self._slots[self._slot] is None
            elif any(self._slots):
                self._advance()
            else:
                raise StopIteration

    def _advance(self) -> None:
        self._slot, self._taken = (self._slot + 1) % len(self._slots), 0

    def _open_next(self) -> tuple[Any, grain.DatasetIterator] | None:
        before = copy.deepcopy(self._iterator.get_state())
        for element in self._iterator:
            return before, iter(self._open_stream(element))
        return None

    def get_state(self) -> dict[str, Any]:
        """Return the position after the last element."""
        slots = [opened and [opened[0], opened[1].get_state()] for opened in self._slots]
        place = {"slot": self._slot, "taken": self._taken, "has_ended": self._has_ended}
        return {"parent": self._iterator.get_state(), "slots": slots, **place}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a position."""
        self._close_slots()
        # Open each stream again: the parent goes to the element of the stream, and the stream to its own position.
        for slot, saved in enumerate(state["slots"]):
            if saved is not None:
                self._iterator.set_state(copy.deepcopy(saved[0]))
                self._slots[slot] = opened = self._open_next()
                if opened is not None:
                    opened[1].set_state(copy.deepcopy(saved[1]))
        # Then the parent goes on behind the elements of all streams.
        self._iterator.set_state(copy.deepcopy(state["parent"]))
        self._slot, self._taken, self._has_ended = state["slot"], state["taken"], state["has_ended"]

    def _close_slots(self) -> None:
        for slot, opened in enumerate(self._slots):
            if opened is not None:
                opened[1].close()
                self._slots[slot] = None

    def close(self) -> None:
        """End the threads of the streams."""
        super().close()
        self._close_slots()


class Recorded(grain.DatasetIterator):
    """The elements of a stream, stored by its first complete pass and read from the store by the others.

    A position is restored from the store, or by running the stream again up to it.

    Args:
        stream: the stream.
        cache: the store.
    """

    def __init__(self, stream: Node, cache: Cache) -> None:
        super().__init__()
        self._stream, self._cache = stream, cache
        self._taken = 0
        self._elements: Sequence[Tree] | None = None
        self._recorded: tuple[Any, contextlib.ExitStack, Append] | None = None

    def __next__(self) -> Tree:
        if self._elements is None and self._recorded is None:
            self._begin()
        if self._elements is None:
            element = self._record()
        elif self._taken < len(self._elements):
            element = self._elements[self._taken]
        else:
            raise StopIteration
        self._taken += 1
        return element

    def _begin(self) -> None:
        self._elements = self._cache.elements()
        if self._elements is None:
            stack = contextlib.ExitStack()
            self._recorded = iter(self._stream), stack, stack.enter_context(self._cache.recorder())
            for _ in range(self._taken):
                self._record()

    def _record(self) -> Tree:
        assert self._recorded is not None
        stream, stack, append = self._recorded
        try:
            for element in stream:
                element = frozen(element)
                append(element)
                return element
        except BaseException:
            self._end_recording()
            raise
        # The pass is complete: the recorder stores it.
        stack.close()
        raise StopIteration

    def get_state(self) -> dict[str, Any]:
        """Return the position after the last element."""
        return {"taken": self._taken}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a position."""
        self._end_recording()
        self._taken, self._elements = state["taken"], None

    def _end_recording(self) -> None:
        if self._recorded is not None:
            stream, stack, _ = self._recorded
            self._recorded = None
            stream.close()
            # An error tells the recorder that the pass is not complete.
            stack.__exit__(GeneratorExit, GeneratorExit(), None)

    def close(self) -> None:
        """End the threads of the streams."""
        super().close()
        self._end_recording()
