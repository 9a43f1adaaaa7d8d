"""What does not fit: the errors, and the largest batch that does."""

from __future__ import annotations

import dataclasses

import numpy as np

from anytpu.chip.compiler import compile_image, largest_batch
from anytpu.chip.compiler.tables import TableSlots
from anytpu.chip.compiler.weight_memory import WeightMemory
from anytpu.chip.isa.design import TPU_V1
from anytpu.chip.isa.instructions import WriteHostMemory
from anytpu.errors import CapacityError
from quantized_samples import SMALL, Sketch, run_exactly
from refusals import refusal

SAME = ((1, 1), (1, 1))


def branches() -> Sketch:
    """Four convolutions of one input, all of them wanted until the end."""
    sketch = Sketch()
    x = sketch.input(6, 6, 10)
    parts = [sketch.convolution(x, 10, (3, 3), padding=SAME) for _ in range(4)]
    total = parts.pop()
    while parts:
        total = sketch.elementwise("add", total, parts.pop(0))
    return sketch


def network_of(sketch: Sketch):
    return sketch.network(sketch.nodes[-1].output)


def test_what_has_no_room_goes_to_the_host_and_comes_back():
    design = dataclasses.replace(SMALL, unified_buffer_bytes=8000)
    image = run_exactly(network_of(branches()), 1, design)
    notes = [tag.note.split("; ")[-1] for tag in image.tags if "spilled" in tag.note]
    assert notes[0] == "spilled: 2,304 bytes to the host, 0 bytes back"
    assert notes[-1] == "spilled: 0 bytes to the host, 2,304 bytes back"
    writes = [one.units for one in image.instructions if isinstance(one, WriteHostMemory)]
    assert writes == [72, 72, 72]  # Two that are moved out, and the result.


def test_too_much_without_spilling():
    design = dataclasses.replace(SMALL, unified_buffer_bytes=24000)
    network = network_of(branches())
    assert refusal(CapacityError, compile_image, network, batch=8, design=design, spill=False) == (
        "'layer 0' of 'sketch' needs 36,864 bytes of the Unified Buffer for a batch of 8, in addition to 0 that "
        "later layers need, and the chip has 24,000. Use batch=2, the largest power of two that fits, or spill=True, "
        "which spills to the host's buffer what does not fit."
    )
    assert largest_batch(network, design, 8) == 2
    compile_image(network, batch=2, design=design, spill=False)


def test_not_even_one_example_without_spilling():
    network = network_of(branches())
    design = dataclasses.replace(SMALL, unified_buffer_bytes=8000)
    assert refusal(CapacityError, compile_image, network, design=design, spill=False) == (
        "'layer 2' of 'sketch' needs 4,608 bytes of the Unified Buffer for one example, in addition to 4,608 that "
        "later layers need, and the chip has 8,000. Not even one example fits: use spill=True, which spills to the "
        "host's buffer what does not fit."
    )
    assert largest_batch(network, design, 64) == 0


def test_one_layer_that_is_too_large_for_a_batch():
    design = dataclasses.replace(SMALL, unified_buffer_bytes=24000)
    assert refusal(CapacityError, compile_image, network_of(branches()), batch=5, design=design) == (
        "'layer 4' of 'sketch' needs 34,560 bytes of the Unified Buffer at once for a batch of 5, and the chip "
        "has 24,000. Use batch=2, the largest power of two that works."
    )


def test_one_layer_that_is_too_large():
    design = dataclasses.replace(SMALL, unified_buffer_bytes=2048)
    assert refusal(CapacityError, compile_image, network_of(branches()), design=design) == (
        "'layer 0' of 'sketch' needs 4,608 bytes of the Unified Buffer at once for one example, and the chip has "
        "2,048. Not even one example fits: make the layer or its inputs smaller."
    )


def test_weights_that_are_too_many_are_refused_before_they_are_laid_out():
    sketch = Sketch()
    x = sketch.input(1, 1, 8)
    network = sketch.network(sketch.convolution(x, 4))
    (node,) = network.nodes
    huge = np.broadcast_to(np.int8(1), (1, 1, 100_000, 50_000))
    ones = np.broadcast_to(np.float32(1), (50_000,))
    fields = {"weights": huge, "weight_scales": ones, "bias": np.broadcast_to(np.int32(0), (50_000,))}
    shapes = {**network.shapes, x: (1, 1, 100_000), node.output: (1, 1, 50_000)}
    network = dataclasses.replace(network, nodes=(dataclasses.replace(node, **fields),), shapes=shapes)
    assert refusal(
        CapacityError, compile_image, network, design=dataclasses.replace(TPU_V1, weight_memory_bytes=2**30)
    ) == (
        "'sketch' needs 5,022,818,304 bytes of Weight Memory, and the chip has 1,073,741,824 (weights lie in whole "
        "tiles of 256 by 256). Make the model smaller, or split it in two and compile each part."
    )


def test_little_weight_memory():
    sketch = Sketch()
    network = sketch.network(sketch.convolution(sketch.input(1, 1, 300), 10))
    assert refusal(
        CapacityError, compile_image, network, design=dataclasses.replace(TPU_V1, weight_memory_bytes=100_000)
    ) == (
        "'sketch' needs 133,120 bytes of Weight Memory, and the chip has 100,000 (weights lie in whole tiles of 256 by "
        "256). Make the model smaller, or split it in two and compile each part."
    )


def test_more_tables_than_slots():
    tables = TableSlots(WeightMemory(TPU_V1))
    entries = np.arange(256) - 128
    for number in range(256):
        assert tables.slot(np.roll(entries, number), False, "layer") == number
    assert tables.slot(np.roll(entries, 7), False, "layer") == 7
    assert refusal(CapacityError, tables.slot, np.zeros(256), False, "gelu") == (
        "'gelu' needs one more table, and the chip holds 256. Split the model in two and compile each part."
    )


def test_a_table_of_8_bits_in_one_of_16():
    memory = WeightMemory(TPU_V1)
    TableSlots(memory).slot(np.arange(256), True, "layer")
    table = memory.image().view("<i2")
    assert len(table) == 65536
    np.testing.assert_array_equal(table[32768 - 128 : 32768 + 128], np.arange(256))


def test_the_largest_batch_is_a_power_of_two_up_to_the_most():
    network = network_of(branches())
    assert [largest_batch(network, TPU_V1, most) for most in (1, 2, 3, 100, 256)] == [1, 2, 2, 64, 256]
    assert largest_batch(network, TPU_V1, 1 << 20) == 4096


def test_equal_things_lie_in_the_weight_memory_once():
    memory = WeightMemory(TPU_V1)
    content = np.arange(2 * 3000, dtype=np.uint8).reshape(2, 3000)
    first = memory.reserve("a", 2, 2, lambda: content)
    assert memory.reserve("a", 2, 2, lambda: content) == first == 0
    assert memory.reserve("b", 1, 1, lambda: content[:1, :5]) == 4
    image = memory.image()
    assert len(image) == 5 * 2048
    np.testing.assert_array_equal(image[4096 : 4096 + 3000], content[1])
    np.testing.assert_array_equal(image[3000:4096], 0)


def test_identity_is_of_content_or_of_the_array():
    a, b = np.arange(5), np.arange(5)
    memory, quick = WeightMemory(TPU_V1), WeightMemory(TPU_V1, by_content=False)
    assert memory.identity(a) == memory.identity(b) != memory.identity(a.astype(np.int8))
    assert quick.identity(a) == quick.identity(a) != quick.identity(b)
