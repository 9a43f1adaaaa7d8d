"""A data set's recipe: its source and steps, and their translation to grain nodes.

Idea: each pass is built from the recipe and the index of the pass. So each pass has its own shuffle order, streams
included, and a position consists of the pass and the offset in it.

Rule: nothing is read while a recipe is written or a pass is built.
"""

from __future__ import annotations

import dataclasses
import functools
import multiprocessing
import os
import threading
from collections.abc import Callable
from typing import Any, Literal

import grain
from absl import flags

from anytpu.pipeline.columns import row_of
from anytpu.pipeline.nodes import unshared

Tree = Any
Length = float | None
"""Number of elements: an integer, `math.inf`, or None if known only after a pass."""
Kind = Literal["rows", "list", "sparse", "stream"]
"""Output of a step: row indices of arrays, elements by index, elements by index with gaps, or elements in order."""
Make = Callable[[int], Any]
"""Builds the node of a pass from the index of the pass."""

SEED_LIMIT = 2**32
"""Upper limit of seeds, exclusive: grain's."""
STREAM_BUFFER = 2
"""Number of elements of a stream that are computed ahead."""
_THREADS = min(os.cpu_count() or 1, 16)
_ELEMENTS_PER_THREAD = 16


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A data set's source and its steps so far.

    Attributes:
        text: the calls with their integers and seeds, without functions, as the data set's `repr` shows them.
        make: builds the grain node of a pass from the index of the pass.
        count: returns the number of elements in a pass, possibly by a scan of files.
        kind: kind of the output.
        arrays: the arrays whose rows are the elements of the source, or None.
        computes: whether elements are worth threads: they are read from files or computed. Rows of arrays would only
            wait for Python's global lock.
        is_endless: whether a pass never ends, as after `repeat()`.
        is_batched: whether the elements are batches, as after `batch`; None if not known.
        reads_ahead: whether a step configures prefetching.
        ends_with_work: whether elements are computed after the threads of `in_order`. If not, no further thread is
            started: it would take 25 us an element.
    """

    text: str
    make: Make
    count: Callable[[], Length]
    kind: Kind
    arrays: Tree = None
    computes: bool = True
    is_endless: bool = False
    is_batched: bool | None = None
    reads_ahead: bool = False
    ends_with_work: bool = True

    def then(
        self,
        text: str,
        make: Make,
        length: Callable[[Length], Length] = lambda length: length,
        *,
        kind: Kind | None = None,
        computes: bool = False,
        **changes: Any,
    ) -> Recipe:
        """Return this recipe with a step appended.

        Args:
            text: the step's call; "" for a step that changes neither elements nor order.
            make: builds the step's node of a pass, with `make` of this recipe.
            length: maps the number of elements before the step to the number after it.
            kind: kind of its output; None: that of its input.
            computes: whether it runs functions of the user.
            **changes: other attributes that it changes.
        """
        return dataclasses.replace(
            self,
            text=f"{self.text}.{text}" if text else self.text,
            make=make,
            count=lambda: length(self.length),
            kind=kind or self.kind,
            computes=self.computes or computes,
            ends_with_work=computes or (kind != "stream" and self.ends_with_work),
            **changes,
        )

    def by_element(self) -> Recipe:
        """Return the recipe with row indices replaced by the rows themselves."""
        if self.kind != "rows":
            return self
        row = functools.partial(row_of, self.arrays)
        return self.then("", lambda pass_index: self.make(pass_index).map(row), kind="list")

    def in_order(self) -> Recipe:
        """Return the recipe with its elements as a stream, computed ahead if they can be indexed."""
        recipe = self.by_element()
        if recipe.kind == "stream":
            return recipe
        return recipe.then("", lambda pass_index: read_ahead(recipe, recipe.make(pass_index)), kind="stream")

    def indexed_or_in_order(self, has_index: bool) -> Recipe:
        """Return the recipe with its elements by index if they have one, else as a stream."""
        return self.by_element() if has_index else self.in_order()

    @functools.cached_property
    def length(self) -> Length:
        """Number of elements in a pass."""
        return self.count()

    @property
    def has_index(self) -> bool:
        """Whether every element of a pass can be computed from its index, and a pass ends."""
        return self.kind in ("rows", "list") and not self.is_endless

    def stream(self, pass_index: int) -> grain.IterDataset:
        """Return the elements of a pass as a stream with prefetching."""
        node = self.by_element().make(pass_index)
        if isinstance(node, grain.MapDataset):
            return read_ahead(self, node)
        if self.reads_ahead or not self.ends_with_work:
            return node
        return grain.experimental.ThreadPrefetchIterDataset(node, prefetch_buffer_size=STREAM_BUFFER)


def read_ahead(recipe: Recipe, node: Any, buffer: int | None = None, threads: int | None = None) -> grain.IterDataset:
    """Convert a node that can be indexed to a stream whose elements threads compute ahead."""
    if buffer == 0 or (buffer is threads is None and not recipe.computes):
        return node.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    threads = threads or _THREADS
    buffer = buffer or max(2, threads * (1 if recipe.is_batched else _ELEMENTS_PER_THREAD))
    return node.to_iter_dataset(grain.ReadOptions(num_threads=min(threads, buffer), prefetch_buffer_size=buffer))


def in_workers(node: grain.IterDataset, workers: int, buffer: int) -> grain.IterDataset:
    """Compute a node's elements ahead in worker processes, `buffer` in each."""
    # grain reads absl's flags to start workers, and most programs do not use absl.
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    options = grain.MultiprocessingOptions(workers, per_worker_buffer_size=buffer)
    return node.mp_prefetch(options, worker_init_fn=_watch_parent).map(unshared)


def _watch_parent(index: int, count: int) -> None:
    """Start a thread that ends this worker process as soon as its parent has ended for any reason.

    A killed process (kill -9, out of memory) cannot notify its workers, which would keep memory and files for ever.

    Args:
        index: index of this worker; grain passes it.
        count: number of workers.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_leave_after, args=(parent,), name=f"worker {index} of {count}", daemon=True).start()


def _leave_after(parent: Any) -> None:
    parent.join()
    os._exit(1)
