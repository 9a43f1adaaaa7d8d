"""The epoch iterator of Keras's fit, evaluate and predict, for a model that runs on a strategy.

Idea: Keras keeps its loops, its data adapters and their shuffling. `Epochs` replaces Keras's epoch iterator and yields
the same steps, in groups. The size of each group is chosen when it is made. If the arrays are resident on the device, a
group holds row indices instead of rows.

Rule: the order of the rows, and the random numbers drawn for it, are those of Keras. A group never crosses an epoch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.engine.feeds import BatchSource, FeedSource, ResidentArrays, RowSource, SingleSource, StepGroup, shapes_of
from anytpu.engine.interrupts import raise_if_interrupted
from anytpu.errors import DataError, DataExhaustedError
from anytpu.program.program import Tree, spec_of
from anytpu.train import checks
from anytpu.train.input_clock import InputClock
from anytpu.train.pass_place import FitReports, PassPlace

if TYPE_CHECKING:
    from anytpu.train.checkpoint import Restored
    from anytpu.train.trainer import Trainer

_KerasEpochIterator: Any = _keras.epoch_iterator_class()
_LEAVING_S = 2.0


@dataclasses.dataclass(frozen=True)
class PastSteps:
    """A group without steps: all steps of the epoch ran before the checkpoint that the fit continues.

    Attributes:
        logs: the logs of the last step.
    """

    logs: dict[str, Any]


class Epochs(_KerasEpochIterator):
    """Iterates over epochs in groups of steps.

    Args:
        trainer: the trainer of the model.
        mode: "train", "test" or "predict".
        arguments: arguments of Keras's epoch iterator, by name.
        is_single_pass: whether the data are read once.
    """

    def __init__(self, trainer: Trainer, mode: str, arguments: dict[str, Any], is_single_pass: bool = False) -> None:
        super().__init__(**{**arguments, "steps_per_execution": 1})
        self._trainer = trainer
        self._mode = mode
        self._source: FeedSource | None = None
        # To build the model, Keras takes one batch and then calls `reset`.
        self._is_building = mode != "predict" or not _keras.is_built(trainer.model)
        self._is_used_up = False
        self._has_started = False
        # Why the pass ended within an epoch. None while it has not ended, or if no length was expected of it.
        self._end: str | None = None
        self._has_ended = False
        self._is_within = False
        self._epoch = 0
        self._clock = InputClock(lambda: trainer.newest_logs)
        self.first_specs: Tree = None
        """Specs of the first batch; None before it. Keras has taken one when it has built the model."""
        self.run: FitReports | None = None
        """The checkpoints of the fit whose data this is, or None."""
        arrays = self._extended(_keras.row_arrays(self.data_adapter))
        self._shuffle = arguments.get("shuffle")
        # `checks.check_call` has seen arrays already.
        self._is_checked = arrays is not None
        self._labels = None if mode == "predict" else trainer.labels.of_pass()
        self._whole = arrays
        if arrays is not None:
            for rows in _keras.batch_sizes(self.data_adapter) if trainer.strategy.strict else ():
                checks.check_strict(trainer.strategy, rows)
        # Keeping arrays resident on the device does not pay off for a single batch.
        self._single = arrays if arrays is not None and self._is_single() else None
        # Over a network, the first steps run while later rows are on their way.
        is_streamed = is_single_pass and trainer.backend.is_far
        if arrays is not None and self._single is None and not is_streamed and trainer.fits(arrays):
            padded = trainer.padding.padded(arrays)
            self._resident = ResidentArrays(trainer.backend, padded, trainer.layout_of(mode))
        else:
            self._resident = None
        resident = self._resident
        if resident is not None:
            self.first_specs = resident.batch(self.data_adapter.batch_size)
        trainer.set_pace(mode, resident and shapes_of(resident.batch(self.data_adapter.batch_size)))

    @functools.cached_property
    def _input(self) -> PassPlace:
        """The position in the data, for the checkpoints of a fit."""
        return PassPlace(self.data_adapter, self._whole, self._shuffle)

    def reset(self) -> None:
        """Start again at the first epoch."""
        super().reset()
        self._is_within = False
        self.close()
        self._is_building = False
        self._epoch = 0

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        """Yield `(first step, last step, group)` for one epoch.

        If the data end within an epoch, an exhausted iterator is yielded instead of a group, as in Keras. The call on
        it raises StopIteration, and Keras's `catch_stop_iteration` around the loop ends the epoch.
        """
        self.data_adapter.on_epoch_begin()
        self._is_within, self._has_ended, self._end = True, False, None
        yield from self._groups()
        self._is_within = False
        self.data_adapter.on_epoch_end()

    def close(self, waits: bool = True) -> None:
        """End the current pass, and the threads and processes that make its batches.

        Args:
            waits: whether to wait up to 2 seconds until they have ended: one may be in a function that never returns.
        """
        source, self._source = self._source, None
        if source is not None:
            with contextlib.suppress(Exception):
                source.close()
        if self._is_within:
            self._is_within = False
            thread = threading.Thread(target=self._leave_epoch, name="anytpu leaves an epoch", daemon=True)
            thread.start()
            if waits:
                thread.join(_LEAVING_S)

    def _leave_epoch(self) -> None:
        # An error raised here would hide the error that ended the pass.
        with contextlib.suppress(Exception):
            self.data_adapter.on_epoch_end()

    def _groups(self) -> Iterator[tuple[int, int, Any]]:
        self._epoch += 1
        if self._mode == "train":
            self._trainer.begin_epoch(self._epoch)
        # Keras may know a length from an earlier pass; the next pass may have another.
        length = self.data_adapter.num_batches
        wanted = self.steps_per_epoch or length
        if wanted == 0:
            raise DataExhaustedError(_no_batch(self._epoch))
        # `step` counts as Keras does (`_counted`), `steps_run` counts the steps that ran.
        step, steps_run, resumed = self._begin_epoch(wanted)
        has_ended = resumed is not None and self._input.has_ended
        with self._clocked():
            while not has_ended and (wanted is None or step < wanted):
                self._trainer.backend.hosts.count_call()
                self._report(step, steps_run)
                group = None if length and self._steps_seen >= length else self._next_group(step, wanted)
                if group is None:
                    self._end = self._why_ended(steps_run, wanted)
                    break
                last = step + self._counted(group) - 1
                self._report_group()
                yield step, last, group
                step, steps_run, resumed = last + 1, steps_run + group.steps, None
        # A signal acts at the latest here.
        self._trainer.backend.hosts.exchange()
        self._trainer.wait_for_logs()
        if resumed is not None and self.run is not None:
            # Keras needs logs to end an epoch; the callbacks that it calls with them have seen them before.
            yield step - 1, step - 1, PastSteps(resumed.host["step_logs"])
            self.run.restore(resumed)
        self._report(step, steps_run, has_ended=True)
        if length and self._steps_seen >= length:
            self._source = None
            if self._end is not None:
                self._interrupted_warning()
        elif wanted is None or step < wanted:
            # In this case Keras itself ends the epoch of the data adapter.
            self._source, self._has_ended, self._is_within = None, True, False
            self._is_used_up = _keras.is_one_shot(self.data_adapter)
            if self._mode == "train" and not steps_run:
                self._trainer.restore_metrics()
            self._report_group()
            yield step, step, iter(())

    def position(self) -> dict[str, Any]:
        """Return the position in the data, for a checkpoint."""
        place = self._input.position(is_open=self._source is not None and self.steps_per_epoch is not None)
        return {**place, "lengths": self._trainer.padding.first}

    def end_epoch(self) -> None:
        """Report that the epoch is over, with its evaluation and callbacks."""
        self._input.end_epoch()
        if self._mode != "train":
            self.close()  # The next evaluation begins a new pass, also if `validation_steps` cut this one.

    def continue_at(self, position: dict[str, Any]) -> None:
        """Continue at a position that `position` returned, perhaps in another process."""
        self._trainer.padding.first = position.get("lengths")
        self._input.continue_at(position, is_validation=self._mode == "test")

    def _begin_epoch(self, wanted: int | None) -> tuple[int, int, Restored | None]:
        """Begin an epoch, or continue it where a checkpoint was taken.

        Returns:
            The number of steps as Keras counts them, the number of steps that ran, and the checkpoint or None.
        """
        run = self.run if self._mode == "train" and not self._is_building else None
        resumed = None if run is None else run.begin_steps()
        place = None if run is None else self._input.take(wanted)
        if place is not None:
            with self._input.continuing():
                self._begin_pass()
                assert self._source is not None
                self._source.skip(self._input.to_skip)
            self._steps_seen, self._has_started = place["seen"], place["seen"] > 0
            return place["step"], place["steps_run"], resumed
        if self._source is None or self.steps_per_epoch is None:
            self._begin_pass()
        return 0, 0, resumed

    def _report(self, step: int, steps_run: int, has_ended: bool = False) -> None:
        """Report to the fit's checkpoints a place between two groups of steps."""
        if self.run is not None and self._mode == "train" and not self._is_building:
            self._input.at(step, steps_run, self._steps_seen, has_ended)
            self.run.reach(steps_run, has_ended)

    def _report_group(self) -> None:
        if self.run is not None and self._mode == "train":
            self.run.begin_group()

    def _counted(self, group: StepGroup) -> int:
        """Return the number of steps that a group counts as: as in Keras, those of a full call even if fewer ran."""
        fixed = self._trainer.steps_per_execution
        return group.steps if fixed is None or self._is_building else fixed

    def _interrupted_warning(self) -> None:
        """Warn why an epoch ended early, if a reason is known."""
        if not self._has_ended and self._end is None:
            super()._interrupted_warning()  # A callback raised StopIteration.
        elif self._end is not None:
            warnings.warn(self._end, stacklevel=2)

    @contextlib.contextmanager
    def _clocked(self) -> Iterator[None]:
        """Measure the time that an epoch of training waits for its input."""
        if self._mode != "train" or self._is_building:
            yield
            return
        self._trainer.print_notices()
        self._clock.begin_epoch()
        if self._trainer.record is not None:
            self._trainer.record.begin_epoch(self._trainer.epoch, self._clock)
        try:
            yield
        finally:
            share = self._clock.end_epoch()
            self._trainer.end_epoch(share, self._clock.notice)

    def __next__(self) -> Any:
        """Reject `next`: an epoch is iterated over with `for`."""
        raise TypeError("iterate over an epoch with for")

    def _next_group(self, step: int, wanted: int | None) -> StepGroup | None:
        """Return the next group, or None if the pass ends inside an epoch; an epoch may begin with a new pass."""
        assert self._source is not None
        raise_if_interrupted()
        max_steps = wanted - step if wanted is not None else 2**31
        group = self._source.take(1 if self._is_building else self._trainer.next_steps(self._mode, max_steps))
        if group is not None:
            self._steps_seen += group.steps
            self._has_started = True
            return group
        if not self._has_started:
            raise DataExhaustedError(_no_batch(self._epoch))
        if step == 0 and self._steps_seen and not _keras.is_one_shot(self.data_adapter):
            self._begin_pass()
            return self._next_group(step, wanted)
        return None

    def _is_single(self) -> bool:
        """Return whether the arrays are one batch and the mode is not training."""
        return self._mode != "train" and self.data_adapter.num_batches == 1

    def _begin_pass(self) -> None:
        self._steps_seen = 0
        if self._whole is not None and self._labels is not None and not self._is_building:
            self._labels.check(self._whole)
            self._labels = None
        # Keras builds the model with a batch of a pass that is not counted.
        if self.run is not None and not self._is_building:
            self._input.begin_pass()
        if self._single is not None:
            batch, layout_of = self._narrowed(self._single), self._trainer.layout_of(self._mode)
            self._source = SingleSource(self._trainer.backend, batch, layout_of)
            return
        if self._resident is not None:
            self._source = RowSource(self._resident, lambda: _keras.row_indices(self.data_adapter))
            return
        batches: Iterator[Tree] = (self._narrowed(batch) for batch in self.data_adapter.get_jax_iterator())
        if self._mode == "train":
            batches = self._clock.timed(batches)
        layout_of = self._trainer.layout_of(self._mode)
        self._source = BatchSource(self._trainer.backend, batches, self._trainer.stack_capacity, layout_of)

    def _narrowed(self, batch: Tree) -> Tree:
        """Pad a batch and cast its 64-bit arrays on the host; check its rows, and the columns of the first batch."""
        has_rows = checks.has_rows(batch)
        if not has_rows and self._mode != "predict":
            raise DataError(_EMPTY_BATCH)
        batch = self._trainer.padding.padded(self._extended(batch, is_batch=True))
        if not self._is_checked and has_rows:
            self._is_checked = True
            self._check_first(batch)
        if self._labels is not None and self._whole is None:
            self._labels.check(batch)
        batch = jax.tree.map(narrow, batch)
        if self.first_specs is None:
            self.first_specs = spec_of(batch)
        return batch

    def _extended(self, batch: Tree, is_batch: bool = False) -> Tree:
        """Return a batch, or arrays, as the model's layers with a state of their own take it."""
        extension = self._trainer.extension
        if batch is None or extension is None:
            return batch
        if not isinstance(batch, tuple):
            return extension.checked(batch, is_batch)
        return (extension.checked(batch[0], is_batch), *batch[1:])

    def _check_first(self, batch: Tree) -> None:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        columns = checks.check_columns({"x": x, "y": y, "sample_weight": sample_weight})
        checks.warn_of_wide([name for name, array in columns if array.dtype == np.float64])

    def _why_ended(self, steps_run: int, wanted: int | None) -> str | None:
        """Return why an epoch ended after `steps_run` steps; None for a first pass of unknown length."""
        if self._is_used_up:
            return _used_up(self._steps_seen)
        if wanted is None:
            return None
        within, name = (f" of epoch {self._epoch}", "steps_per_epoch") if self._mode == "train" else ("", "steps")
        ended = f"the data ended after {steps_run} of the {wanted} steps{within}"
        if self._steps_seen > steps_run and not _keras.is_one_shot(self.data_adapter):
            return (
                f"{ended}: a pass has {self._steps_seen} batches, which {name} does not divide. The next epoch starts "
                "a new pass"
            )
        return (
            f"{ended}, and the epoch ends there, as in Keras. Pass {name}={max(steps_run, 1)} or fewer, or data that "
            "does not end, such as a generator with an endless loop"
        )


def narrow(leaf: Any) -> np.ndarray:
    """Return an array on the host with the dtype that JAX would use: of 32 bits, unless its 64-bit mode is on."""
    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


_EMPTY_BATCH = (
    "the data yielded a batch of 0 rows, and a step has no loss for it. Leave empty batches out, for example in the "
    "generator: if len(x): yield x, y"
)


def _no_batch(epoch: int) -> str:
    return f"the data yielded no batch in epoch {epoch}: pass a data set or a generator that yields at least one"


def _used_up(batches: int) -> str:
    return (
        f"the data is exhausted: a generator can be iterated over only once. This epoch had {batches} batches, which "
        "Keras kept from the first epoch. Pass epochs=1, or steps_per_epoch (for validation, validation_steps) with a "
        "generator that does not end, or a data set that starts again, such as a keras.utils.PyDataset"
    )
