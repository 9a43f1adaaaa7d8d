"""`PassPlace`: the position of a fit in its data: what is saved, and how a pass continues there.

Idea: a `tpu.pipeline.Dataset` knows its position. Arrays are shuffled by NumPy's generator when a pass begins. So the
generator's state at that time and the number of batches give the rest of the pass. Other data are read again up to the
position: a generator, a PyDataset, a loader.

Rule: a position is exact for data sets and arrays. For other data a message says that it depends on them. A position
belongs to one input: within a pass, another number of rows, batch size or shuffling is refused.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from anytpu import _keras
from anytpu.engine.random_state import compact, random_states, restore_random_states
from anytpu.errors import DataError
from anytpu.train.checkpoint import Restored
from anytpu.train.checkpoint.manifest import digest_of, is_number

if TYPE_CHECKING:
    from anytpu.program.program import Program

LOG = logging.getLogger("anytpu")

_SAMPLED_ROWS = 64


class FitReports(Protocol):
    """The part of `FitRun` that the trainer and the epochs of its fit call."""

    def begin_steps(self) -> Restored | None:
        """Restore a state that was saved within the epoch; return it if steps of the epoch ran, or None."""
        ...

    def restore(self, resumed: Restored) -> None:
        """Set all values to those of a checkpoint."""
        ...

    def reach(self, done: int, is_end: bool = False) -> None:
        """Report a place before a group of steps, or the end of the steps of an epoch."""
        ...

    def compiled(self, program: Program) -> None:
        """Record the program of the next steps."""
        ...

    def found_outside(self) -> None:
        """Report that the trainer has found variables outside of Keras's lists."""
        ...

    def begin_group(self) -> None:
        """Report that the next call begins."""
        ...

    def change(self) -> None:
        """Report that values change."""
        ...


class PassPlace:
    """The position of a fit in one data set.

    Args:
        adapter: Keras's data adapter.
        arrays: its arrays, or None.
        shuffle: the argument of `fit`.

    Attributes:
        has_ended: whether the epoch has no more steps.
        to_skip: number of batches to skip when the pass continues.
    """

    def __init__(self, adapter: Any, arrays: Any = None, shuffle: Any = None) -> None:
        self._adapter = adapter
        self._text = _text(adapter, arrays, shuffle)
        self._values = _sample(arrays)
        self._has_position = hasattr(adapter, "start_at")
        self._random: dict[str, Any] | None = None
        self._place = {"step": 0, "steps_run": 0, "seen": 0}
        self._wanted: int | None = None
        self._next: dict[str, Any] | None = None
        self._start: dict[str, Any] | None = None
        self.has_ended = False
        self.to_skip = 0

    def begin_pass(self) -> None:
        """Note the state of the random generators before the pass draws its order, or start at a saved position."""
        if self._start is not None:
            self._adapter.start_at(self._start)
            self._start = None
        self._random = None if self._has_position else compact(random_states())

    def at(self, step: int, steps_run: int, seen: int, has_ended: bool) -> None:
        """Note the place in an epoch.

        Args:
            step: number of steps of the epoch, as Keras counts them.
            steps_run: number of steps of the epoch that ran.
            seen: number of batches of the pass that were taken.
            has_ended: whether the epoch has no more steps.
        """
        self._place = {"step": step, "steps_run": steps_run, "seen": seen}
        self.has_ended = has_ended

    def position(self, is_open: bool) -> dict[str, Any]:
        """Return the position, for a checkpoint.

        Args:
            is_open: whether the pass continues in the next epoch.
        """
        return {
            **self._place,
            "input": self._text,
            "values": self._values,
            "ended": self.has_ended,
            "open": is_open,
            "wanted": self._wanted,
            "random": self._random,
            "dataset": (self._start or self._adapter.position()) if self._has_position else None,
        }

    def end_epoch(self) -> None:
        """Note that the epoch is over: the next place is the beginning of the next epoch."""
        self._place = {**self._place, "step": 0, "steps_run": 0}
        self.has_ended = False

    def continue_at(self, position: dict[str, Any], is_validation: bool) -> None:
        """Continue at a position when the next epoch begins; validation data begin a pass then."""
        self._next = position
        self._start = position["dataset"] if self._has_position else None
        if is_validation and _keras.is_one_shot(self._adapter):
            LOG.warning(
                "The validation data is a generator, which starts anew. An uninterrupted run would validate with its "
                "later batches"
            )

    def take(self, wanted: int | None) -> dict[str, Any] | None:
        """Return the place in the epoch that begins, or None if it begins with a new pass.

        Args:
            wanted: number of steps of the epoch, or None if it is not known.

        Raises:
            DataError: the epoch has another number of steps, or the input is another, than when the position was saved.
        """
        place, self._next = self._next, None
        self.has_ended = False
        self._wanted, before = wanted, None if place is None else place["wanted"]
        if place is None or not (place["open"] or place["steps_run"] or place["ended"]):
            return None
        if wanted != before and before is not None:
            raise DataError(
                f"the checkpoint was saved at step {place['steps_run']} of an epoch of {before} steps, and this epoch "
                f"has {wanted}. Pass the data and the batch_size of that run, or choose another checkpoint_dir"
            )
        if place.get("input", self._text) != self._text:
            raise DataError(
                f"the checkpoint was saved at step {place['steps_run']} of a pass over {place['input']}, and this is "
                f"{self._text}. Pass the data, the batch_size and the shuffle of that run, or choose another "
                "checkpoint_dir"
            )
        if place.get("values", self._values) != self._values:
            LOG.warning(
                "The arrays have other values than those of the checkpoint. The pass continues with those of now"
            )
        self.has_ended = place["ended"]
        self.to_skip = 0 if self._has_position else place["seen"]
        self._random = place["random"]
        if self.to_skip and type(self._adapter).__name__ != "ArrayDataAdapter":
            LOG.warning(
                "The first %d batches of %s are read again and skipped. The run continues exactly if it yields the "
                "same batches in each process",
                self.to_skip,
                type(self._adapter).__name__,
            )
        return place

    @contextlib.contextmanager
    def continuing(self) -> Iterator[None]:
        """Return a context for the beginning of a continued pass: its order is drawn as it was drawn first."""
        now, first = random_states(), self._random
        if first is not None:
            restore_random_states(first)
        try:
            yield
        finally:
            restore_random_states(now)
            self._random = first


def _text(adapter: Any, arrays: Any, shuffle: Any) -> str:
    """Return the input as text, with what the order of its batches depends on."""
    if hasattr(adapter, "start_at"):
        return adapter.text()
    leaves = jax.tree.leaves(arrays)
    if leaves:
        return f"arrays of {len(leaves[0])} rows with batch_size={adapter.batch_size} and shuffle={shuffle!r}"
    if _keras.is_one_shot(adapter):
        return "a generator"
    return f"{type(getattr(adapter, 'py_dataset', adapter)).__name__} with shuffle={shuffle!r}"


def _sample(arrays: Any) -> list[str]:
    """Return a digest of some rows of each array, so that other values are noticed without reading all of them."""
    leaves = [leaf for leaf in jax.tree.leaves(arrays) if is_number(leaf.dtype) and len(leaf)]
    return [digest_of(leaf[np.linspace(0, len(leaf) - 1, _SAMPLED_ROWS).astype(int)]) for leaf in leaves]
