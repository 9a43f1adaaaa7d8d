"""What was prepared for an image is freed with it, and shared by images of the same weights."""

from __future__ import annotations

import gc
import weakref

import numpy as np

from anytpu.chip.compiler import compile_image
from anytpu.chip.machine import loaded, run
from machine_samples import image_of
from quantized_samples import Sketch, agree, inputs_of


def test_an_image_that_was_run_is_freed_with_what_was_prepared_for_it():
    image = image_of([], np.zeros(0, np.uint8))
    whole = image.inputs[0]
    content = np.ones((1, *whole.shape), np.int8)
    gc.collect()
    before = len(loaded._STEPS), len(loaded._KEPT)
    for _ in range(2):
        np.testing.assert_array_equal(run(image, {whole.tensor: content})[whole.tensor], content)
    assert (len(loaded._STEPS), len(loaded._KEPT)) == (before[0] + 1, before[1] + 1)
    gone = weakref.ref(image)
    del image
    gc.collect()
    assert (gone(), len(loaded._STEPS), len(loaded._KEPT)) == (None, *before)


def test_images_of_the_same_weights_share_memories_and_converted_weights():
    sketch = Sketch()
    network = sketch.network(sketch.table(sketch.convolution(sketch.input(1, 1, 300), 70)))
    own = compile_image(network, batch=4)
    run(own, inputs_of(network, 4))
    kept = loaded._KEPT.get(own.weights)
    assert kept is not None
    (spare,), parts = kept.spare[own.design.compiled_for], dict(kept.multiplier._kept)
    for batch in (1, 3, 9):  # the last needs a larger buffer of the host
        image = compile_image(network, batch=batch, known=own.weights)
        agree(image, network, inputs_of(network, batch, batch))
        (again,) = kept.spare[own.design.compiled_for]
        assert again.buffer is spare.buffer and again.accumulators is spare.accumulators
        assert kept.multiplier._kept == parts and not again.tables and not len(again.weights)
    agree(own, network, inputs_of(network, 4, 1))
    gone = weakref.ref(own.weights)
    del own, image, kept, spare, again, parts
    gc.collect()
    assert gone() is None
