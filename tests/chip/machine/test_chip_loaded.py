"""What was prepared for an image is freed with it."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from anytpu.chip.machine import loaded, run
from machine_samples import image_of


def test_an_image_that_was_run_is_freed_with_what_was_prepared_for_it():
    image = image_of([], np.zeros(0, np.uint8))
    whole = image.inputs[0]
    content = np.ones((1, *whole.shape), np.int8)
    gc.collect()
    before = len(loaded._PREPARED)
    for _ in range(2):
        np.testing.assert_array_equal(run(image, {whole.tensor: content})[whole.tensor], content)
    assert len(loaded._PREPARED) == before + 1
    gone = weakref.ref(image)
    del image
    gc.collect()
    assert (gone(), len(loaded._PREPARED)) == (None, before)
