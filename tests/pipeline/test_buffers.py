from __future__ import annotations

import threading

import numpy as np

from anytpu.pipeline import buffers
from anytpu.pipeline.buffers import batch_array
from anytpu.units import MIB


def place(array: np.ndarray) -> int:
    return array.ctypes.data


def test_shape_type_and_alignment():
    for shape, dtype in (((3, 5), "float32"), ((2 * MIB + 3,), "uint8"), ((300, 1000), "float64"), ((0,), "int64")):
        array = batch_array(shape, dtype)
        assert (array.shape, array.dtype, array.flags.writeable) == (shape, dtype, True)
        array[...] = 7
        assert (array == 7).all()
        if array.nbytes >= MIB:
            assert place(array) % 64 == 16


def test_memory_is_used_again():
    array = batch_array((2 * MIB,))
    first = place(array)
    del array
    again = batch_array((2, MIB))
    assert place(again) == first


def test_not_while_anything_holds_it():
    array = batch_array((2 * MIB,))
    array[:] = 1
    held = [array[5:10], array.reshape(2, -1).T, memoryview(array)]
    first = place(array)
    del array
    while held:
        other = batch_array((2 * MIB,))
        other[:] = 2
        assert place(other) != first
        assert np.asarray(held[-1]).min() == 1
        del other
        held.pop()
    # The last memory to be given back is the first to be taken.
    assert place(batch_array((2 * MIB,))) == first


def test_little_lies_idle():
    for size in (MIB, 2 * MIB, 3 * MIB):
        arrays = [batch_array((size,)) for _ in range(6)]
        del arrays
    assert {size: len(idle) for size, idle in buffers._idle.items()} == {3 * MIB: 4}


def test_from_several_threads():
    faults = []

    def fill(number: int) -> None:
        for _ in range(200):
            array = batch_array((MIB,))
            array[::4096] = number
            if not (array[::4096] == number).all():
                faults.append(number)

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
