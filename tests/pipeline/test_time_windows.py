"""Windows of a series equal those of tf.data, whose rule is: whole windows, `shift` apart, every `stride`-th step."""

from __future__ import annotations

import numpy as np
import pytest

from anytpu import pipeline
from anytpu.errors import SettingError


@pytest.mark.parametrize(("size", "shift", "stride"), [(3, 1, 1), (2, None, 1), (3, 2, 2)])
def test_windows(size, shift, stride):
    series = np.arange(8)
    starts = range(0, len(series) - (size - 1) * stride, shift or size)
    wanted = [series[start : start + (size - 1) * stride + 1 : stride].tolist() for start in starts]
    steps = pipeline.Dataset.from_arrays(series)
    assert [window.tolist() for window in pipeline.windows(steps, size, shift, stride)] == wanted


def test_a_window_without_steps():
    with pytest.raises(SettingError) as error:
        pipeline.windows(np.arange(3), 0)
    assert str(error.value) == "size, shift and stride must be at least 1, not 0, 0 and 1"


def test_targets_of_windows():
    batches = pipeline.timeseries_dataset_from_array(
        np.arange(10), np.arange(10) * 2, 3, sequence_stride=2, batch_size=2
    )
    x, y = next(iter(batches))
    assert (x.tolist(), y.tolist()) == ([[0, 1, 2], [2, 3, 4]], [0, 4])
