"""The epoch iterator that Keras's fit, evaluate and predict walk over, when their model runs on a strategy.

Idea: Keras keeps its loops, its data adapters and their shuffling. This stands where Keras's own epoch iterator stands
and yields the same steps, but in groups whose size is chosen one by one, and as row numbers where the arrays lie on the
device.

Rule: the order of the rows, and the random numbers drawn for it, are those of Keras. A group never crosses an epoch.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.engine.feeds import BatchSource, Group, ResidentArrays, RowSource, Source, shapes_of
from anytpu.errors import DataExhaustedError
from anytpu.program.program import Tree
from anytpu.train import checks
from anytpu.train.input_clock import InputClock
from anytpu.train.padding import Padded

if TYPE_CHECKING:
    from anytpu.train.trainer import Trainer

_KerasEpochIterator: Any = _keras.epoch_iterator_class()


class Epochs(_KerasEpochIterator):
    """Walks over epochs in groups.

    Args:
        trainer: the trainer of the model.
        mode: "train", "test" or "predict".
        arguments: what Keras passes to its own epoch iterator, by name.
    """

    def __init__(self, trainer: Trainer, mode: str, arguments: dict[str, Any]) -> None:
        super().__init__(**{**arguments, "steps_per_execution": 1})
        self._trainer = trainer
        self._mode = mode
        self._source: Source | None = None
        # Until Keras has built the model it asks for one batch and starts again.
        self._is_building = mode != "predict" or not _keras.is_built(trainer.model)
        self._is_checked = False
        self._is_used_up = False
        self._seen = 0
        self._epoch = 0
        self._clock = InputClock(lambda: trainer.newest_logs)
        # Once a batch has another length than the first, all that follow are padded.
        self._is_varied = False
        arrays = _keras.row_arrays(self.data_adapter)
        if arrays is not None:
            for rows in _keras.batch_sizes(self.data_adapter):
                checks.check_strict(trainer.strategy, rows)
        if arrays is not None and trainer.fits(arrays):
            self._resident = ResidentArrays(trainer.backend, trainer.padding.padded(arrays, may_stay=True))
        else:
            self._resident = None
        resident = self._resident
        trainer.set_pace(mode, resident and shapes_of(resident.batch(self.data_adapter.batch_size)))

    def reset(self) -> None:
        """Start again at the first epoch."""
        super().reset()
        self._source = None
        self._is_building = False
        self._epoch = 0

    def __iter__(self) -> Iterator[tuple[int, int, Group]]:
        """Yield `(first step, last step, group)` for one epoch."""
        self.data_adapter.on_epoch_begin()
        try:
            yield from self._groups()
        except BaseException:
            # A data set that loads in threads ends them here; what it says then would hide what went wrong.
            with contextlib.suppress(Exception):
                self.data_adapter.on_epoch_end()
            raise
        self.data_adapter.on_epoch_end()

    def _groups(self) -> Iterator[tuple[int, int, Group]]:
        self._epoch += 1
        if self._mode == "train":
            self._trainer.begin_epoch(self._epoch)
        # A length that Keras learned from an earlier pass need not be that of the next.
        wanted = self.steps_per_epoch or self.data_adapter.num_batches
        step = 0
        if wanted == 0:
            raise DataExhaustedError(_exhausted(0, None, self._epoch))
        with self._clocked():
            while wanted is None or step < wanted:
                group = self._next_group(step, wanted)
                if group is None:
                    break
                yield step, step + group.steps - 1, group
                step += group.steps
        if self.steps_per_epoch is None:
            self._source = None
        if wanted is None:
            self._num_batches = step

    @contextlib.contextmanager
    def _clocked(self) -> Iterator[None]:
        """Measure the input of an epoch of training."""
        if self._mode != "train" or self._is_building:
            yield
            return
        self._trainer.print_notices()
        self._clock.begin_epoch()
        try:
            yield
        finally:
            share = self._clock.end_epoch()
            self._trainer.end_epoch(share, self._clock.notice)

    def __next__(self) -> Any:
        """Refuse: an epoch is walked over with `for`."""
        raise TypeError("walk over an epoch with for")

    def _next_group(self, step: int, wanted: int | None) -> Group | None:
        """Return the next group, from a new pass at the begin of an epoch; None when a pass ends inside an epoch."""
        if self._source is None:
            self._source = self._new_source()
        most = wanted - step if wanted is not None else 2**31
        group = self._source.take(1 if self._is_building else self._trainer.next_steps(self._mode, most))
        if group is not None:
            self._seen += group.steps
            return group
        self._source = None
        self._is_used_up = _keras.is_one_shot(self.data_adapter)
        if step == 0 and self._seen and not self._is_used_up:
            return self._next_group(step, wanted)
        self._explain_end(step, wanted)
        return None

    def _new_source(self) -> Source:
        if self._is_used_up:
            raise DataExhaustedError(_USED_UP)
        self._seen = 0
        if self._resident is not None:
            return RowSource(self._resident, lambda: _keras.row_numbers(self.data_adapter))
        batches: Iterator[Tree] = (self._narrowed(batch) for batch in self.data_adapter.get_jax_iterator())
        if self._mode == "train":
            batches = self._clock.timed(batches)
        return BatchSource(self._trainer.backend, batches, self._capacity)

    def _capacity(self, batch_bytes: int) -> int:
        # Neighbours of different lengths do not stack.
        return 1 if self._is_varied else self._trainer.stack_capacity(batch_bytes)

    def _narrowed(self, batch: Tree) -> Tree:
        """Cast on the host what JAX would cast on the device (float64, int64); check the columns of a first batch."""
        batch = self._trainer.padding.padded(batch, may_stay=not self._is_varied)
        self._is_varied |= isinstance(batch, Padded)
        if not self._is_checked:
            self._is_checked = True
            self._check_first(batch)
        return jax.tree.map(_narrow, batch)

    def _check_first(self, batch: Tree) -> None:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        columns = checks.check_columns({"x": x, "y": y, "sample_weight": sample_weight})
        checks.warn_of_wide([name for name, array in columns if array.dtype == np.float64])

    def _explain_end(self, step: int, wanted: int | None) -> None:
        """Say why an epoch ended early: nothing for a first pass of unknown length."""
        if wanted is None and step:
            return
        if wanted is None or self._is_used_up or self._seen < wanted:
            raise DataExhaustedError(_exhausted(step, wanted, self._epoch))
        warnings.warn(
            f"the data ended after {step} of the {wanted} steps of epoch {self._epoch}: a pass has {self._seen} "
            "batches, which steps_per_epoch does not divide. The next epoch starts a new pass",
            stacklevel=2,
        )


def _narrow(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)


def _exhausted(step: int, wanted: int | None, epoch: int) -> str:
    if wanted is None:
        return f"the data gave no batch in epoch {epoch}: pass a data set or a generator that yields at least one"
    return (
        f"the data ended after {step} of the {wanted} steps of epoch {epoch}. The model stands at the last finished "
        f"step. Pass steps_per_epoch={max(step, 1)} or fewer, or data that goes on, such as a generator with an "
        "endless loop"
    )


_USED_UP = (
    "the data is used up: a generator can be walked over once only. Pass epochs=1, or steps_per_epoch (for validation, "
    "validation_steps) with a generator that goes on, or a data set that starts again, such as a keras.utils.PyDataset"
)
