"""Windows of a time series as rows of a data set.

Idea: the series is in memory, and a window is a view of it, so the windows take no memory. A data set of them has all
its rows at hand: they can be shuffled as a whole.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from anytpu._calls import explain_arguments
from anytpu.errors import SettingError
from anytpu.pipeline.dataset import Dataset


@explain_arguments
def windows(series: Any, size: int, shift: int | None = None, stride: int = 1) -> Dataset:
    """Return the whole windows of a series: `dataset.window(...).flat_map(lambda w: w.batch(size))` of tf.data.

    Args:
        series: a finite data set of steps, or a tree of arrays with the steps as first axis.
        size: number of steps of a window.
        shift: steps from one window to the next; None: `size`.
        stride: steps from one element of a window to the next.

    Raises:
        SettingError: a number is below 1, or the data set is endless.

    Example:
        >>> [window.tolist() for window in windows(np.arange(5), 3, shift=1)]
        [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
    """
    shift = size if shift is None else shift
    if min(size, shift, stride) < 1:
        raise SettingError(f"size, shift and stride must be at least 1, not {size}, {shift} and {stride}")
    if isinstance(series, Dataset):
        if series.is_endless:
            raise SettingError("windows need a finite data set: take windows before repeat()")
        series = jax.tree.map(lambda *steps: np.stack(steps), *series)
    return Dataset.from_arrays(jax.tree.map(lambda steps: _windows(np.asarray(steps), size, shift, stride), series))


def _windows(steps: np.ndarray, size: int, shift: int, stride: int) -> np.ndarray:
    """Return a view of a series, `(windows, size, ...)`."""
    span = (size - 1) * stride + 1
    if len(steps) < span:
        return np.empty((0, size, *steps.shape[1:]), steps.dtype)
    view = np.lib.stride_tricks.sliding_window_view(steps, span, axis=0)[::shift]
    return np.moveaxis(view, -1, 1)[:, ::stride]


@explain_arguments
def timeseries_dataset_from_array(
    data: Any,
    targets: Any,
    sequence_length: int,
    sequence_stride: int = 1,
    sampling_rate: int = 1,
    batch_size: int | None = 128,
    shuffle: bool = False,
    seed: int | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
) -> Dataset:
    """Return batches of windows of a series, as Keras's function of this name does with tf.data.

    Args:
        data: the series, an array with the steps as first axis.
        targets: the target of the window that begins at each step; None for windows alone.
        sequence_length: number of elements of a window.
        sequence_stride: steps from one window to the next.
        sampling_rate: steps from one element of a window to the next.
        batch_size: windows of a batch; None for single windows.
        shuffle: shuffle the windows in each pass.
        seed: seed of the shuffle.
        start_index: the first step that is used.
        end_index: the step before which the data end.

    Example:
        >>> batch, target = next(iter(timeseries_dataset_from_array(np.arange(6), np.arange(6), 3, batch_size=2)))
        >>> batch.tolist(), target.tolist()
        ([[0, 1, 2], [1, 2, 3]], [0, 1])
    """
    series = np.asarray(data)[start_index:end_index]
    rows: Any = _windows(series, sequence_length, sequence_stride, sampling_rate)
    if targets is not None:
        wanted = np.asarray(targets)[start_index:end_index][::sequence_stride]
        count = min(len(rows), len(wanted))
        rows = rows[:count], wanted[:count]
    dataset = Dataset.from_arrays(rows)
    dataset = dataset.shuffle(seed=seed or 0) if shuffle else dataset
    return dataset if batch_size is None else dataset.batch(batch_size)
