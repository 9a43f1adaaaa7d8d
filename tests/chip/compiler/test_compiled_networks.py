"""Networks by hand, of every kind of node, on the chip: every bit as the reference has it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from anytpu.chip.compiler import compile_image
from anytpu.chip.isa.design import TPU_V1, Design
from anytpu.chip.isa.instructions import Activate, Convolve, InterruptHost, ReadWeights, WriteHostMemory
from quantized_samples import MIDDLE, SMALL, Sketch, agree, run_exactly

BITS = pytest.mark.parametrize("bits", [8, 16])
DESIGNS = pytest.mark.parametrize("design", [TPU_V1, SMALL, MIDDLE], ids=["256", "8", "40"])
SAME = ((1, 1), (1, 1))


def count(image, kind) -> int:
    return sum(isinstance(one, kind) for one in image.instructions)


def tags(image) -> dict[str, str]:
    return {tag.name: tag.kind for tag in image.tags}


@BITS
@DESIGNS
def test_picture(bits: int, design: Design):
    sketch = Sketch(bits)
    a = sketch.convolution(sketch.input(9, 9, 3), 20, (3, 3), padding=SAME)
    pooled = sketch.pool("max", a, (2, 2), (2, 2))
    b = sketch.convolution(pooled, 20, (3, 3), padding=SAME)
    d = sketch.elementwise("add", pooled, b)
    outputs = [
        sketch.table(sketch.convolution(d, 10, (4, 4))),
        sketch.pool("average", d, (3, 3), padding=SAME),
        sketch.pool("average", d, (3, 3), (2, 2), padding=SAME, counts=True),
        sketch.convolution(d, 20, (3, 3), (2, 1), SAME, groups=20),
        sketch.convolution(d, 8, (2, 2), groups=4, dilation=(2, 3)),
        sketch.elementwise("multiply", d, sketch.pool("average", d, (4, 4))),
        sketch.elementwise("subtract", d, pooled),
        sketch.convolution(sketch.reshape(d, 1, 1, 320), 33),
        sketch.convolution(d, 7, padding=((-1, 0), (0, -2))),
    ]
    run_exactly(sketch.network(*outputs), 3, design)


@BITS
@DESIGNS
def test_channels_and_positions_move(bits: int, design: Design):
    sketch = Sketch(bits)
    a = sketch.convolution(sketch.input(5, 6, 40), 50, (3, 3), padding=SAME)
    left, right = sketch.cut(a, 2, 7, 30), sketch.cut(a, 2, 30, 50)
    lines, columns = sketch.cut(a, 0, 1, 3), sketch.cut(a, 1, 2, 5)
    outputs = [
        sketch.convolution(sketch.concatenate([right, left], 2), 12),
        sketch.elementwise("add", left, sketch.convolution(a, 23)),
        sketch.convolution(sketch.reshape(a, 1, 1, 1500), 11),
        sketch.reshape(a, 5, 3, 100),
        sketch.reshape(a, 5, 12, 25),
        sketch.table(sketch.reshape(a, 10, 10, 15)),
        sketch.concatenate([lines, sketch.convolution(lines, 50)], 0),
        sketch.concatenate([columns, sketch.convolution(columns, 50)], 1),
        sketch.cut(sketch.inputs[0].tensor, 2, 5, 9),
        a,
    ]
    run_exactly(sketch.network(*outputs), 3, design)


@BITS
@DESIGNS
def test_lstm(bits: int, design: Design):
    sketch = Sketch(bits)
    last, states = sketch.lstm(steps=5, units=20, features=17)
    sequence = sketch.concatenate(states, 1)
    outputs = sequence, sketch.convolution(last, 3), sketch.convolution(sequence, 7)
    image = run_exactly(sketch.network(*outputs), 3, design)
    # Parts of time and gates are views. What a step takes is copied beside its state, and all states into the sequence.
    assert sum(tag.kind == "copy" for tag in image.tags) == (5 + 1 if design is TPU_V1 else 0)
    assert count(image, WriteHostMemory) == 3


def test_weights_of_steps_lie_in_the_weight_memory_once():
    short, long = Sketch(), Sketch()
    images = []
    for sketch, steps in ((short, 2), (long, 9)):
        last, _ = sketch.lstm(steps, units=16, features=8)
        images.append(run_exactly(sketch.network(last), 2, TPU_V1))
    assert len(images[0].weights) == len(images[1].weights)
    tables = [one for one in images[1].instructions if isinstance(one, ReadWeights) and one.kind == "table"]
    assert len(tables) == 5


@DESIGNS
def test_bits_change_in_tables(design: Design):
    sketch = Sketch(8)
    x = sketch.input(3, 3, 10)
    wide = sketch.table(x, bits=16)
    sketch.bits = 16
    both = sketch.elementwise("add", wide, sketch.table(sketch.input(3, 3, 10)))
    narrow = sketch.table(both, bits=8)
    sketch.bits = 8
    run_exactly(sketch.network(sketch.convolution(narrow, 5), narrow, wide), 2, design)


@DESIGNS
def test_operands_of_two_widths(design: Design):
    sketch = Sketch(16)
    x = sketch.input(3, 3, 10, bits=8)
    run_exactly(sketch.network(sketch.elementwise("add", x, sketch.convolution(x, 10))), 2, design)


@DESIGNS
def test_host_steps(design: Design):
    sketch = Sketch()
    x = sketch.input(3, 3, 10)
    first = sketch.negate_on_host(x)
    inner = sketch.convolution(first, 12)
    second = sketch.negate_on_host(inner)
    third = sketch.negate_on_host(second)
    real = sketch.negate_on_host(sketch.elementwise("add", third, inner), is_real=True)
    image = run_exactly(sketch.network(real, second), 2, design)
    assert count(image, InterruptHost) == 4
    assert [tag.kind for tag in image.tags if "host" in tag.note] == ["negate on the host"] * 4
    assert image.tags[0].note == "on the host: the test says so"
    assert image.services[0].inputs == image.inputs  # The input is in the host's buffer: nothing is written back.
    assert image.services[3].output is None


def test_a_step_takes_the_users_own_numbers():
    sketch = Sketch()
    x = sketch.input(1, 1, 6)
    middle = sketch.negate_on_host(x)
    network = sketch.network(sketch.convolution(middle, 4))
    del sketch.quantizations[x]
    image = compile_image(network, batch=2)
    agree(image, network, {x: np.random.default_rng(0).normal(size=(2, 1, 1, 6)).astype(np.float32)})
    assert image.inputs == () and image.services[0].inputs == (None,)


def test_a_table_is_looked_up_where_its_input_is_made():
    sketch = Sketch()
    x = sketch.input(4, 4, 8)
    y = sketch.table(sketch.convolution(x, 8))
    image = run_exactly(sketch.network(y), 2, TPU_V1)
    assert tags(image) == {"node 0": "convolution + tanh"}
    assert [one.table for one in image.instructions if isinstance(one, Activate)] == [True]


def test_a_table_of_what_is_wanted_elsewhere_is_looked_up_by_itself():
    sketch = Sketch()
    x = sketch.convolution(sketch.input(4, 4, 8), 8)
    image = run_exactly(sketch.network(sketch.table(x), x), 2, TPU_V1)
    assert tags(image) == {"node 0": "convolution", "node 1": "tanh"}


def test_outputs_that_are_inputs_or_named_twice():
    sketch = Sketch()
    x = sketch.input(2, 2, 3)
    y = sketch.table(x)
    network = sketch.network(y, x, y)
    image = run_exactly(network, 2, SMALL)
    assert [one.tensor for one in image.outputs] == [y, x]


def test_no_weights():
    sketch = Sketch()
    last, _ = sketch.lstm(3, 12, 8)
    network = sketch.network(sketch.convolution(last, 300))
    full, bare = compile_image(network), compile_image(network, weights=False)
    assert bare.instructions == full.instructions
    assert bare.weights.shape == full.weights.shape and not bare.weights.any() and bare.weights.strides == (0,)


def test_a_number_of_examples_that_no_chunk_divides():
    sketch = Sketch()
    x = sketch.input(5, 3, 9)
    a = sketch.convolution(x, 9, (2, 2), padding=((1, 0), (0, 1)))
    y = sketch.elementwise("add", a, sketch.pool("max", x, (5, 3)))
    z = sketch.pool("max", y, (2, 2))
    run_exactly(sketch.network(z), 7, SMALL)


def test_more_taps_than_an_instruction_repeats():
    sketch = Sketch()
    x = sketch.input(17, 18, 8)
    network = sketch.network(sketch.convolution(x, 3, (17, 17)))
    image = run_exactly(network, 1, SMALL)
    products = [one for one in image.instructions if isinstance(one, Convolve)]
    assert [one.repeat for one in products] == [255, 34]


def test_the_input_is_read_in_parts_as_it_is_wanted():
    sketch = Sketch()
    x = sketch.input(80, 80, 8)
    image = run_exactly(sketch.network(sketch.convolution(x, 4, (3, 3))), 1, TPU_V1)
    kinds = [type(one).__name__ for one in image.instructions]
    assert kinds.index("Activate") < len(kinds) - 1 - kinds[::-1].index("ReadHostMemory")


def test_several_inputs():
    sketch = Sketch()
    a, b = sketch.input(1, 1, 5), sketch.input(1, 1, 5)
    image = run_exactly(sketch.network(sketch.elementwise("add", a, b)), 4, SMALL)
    assert [one.tensor for one in image.inputs] == [a, b]


@BITS
def test_an_lstm_takes_two_tiles_a_step(bits: int):
    steps, sketch = 5, Sketch(bits)
    last, states = sketch.lstm(steps, 100, 32)
    image = run_exactly(sketch.network(last, states[2]), 3, TPU_V1)
    tiles = [one.count for one in image.instructions if isinstance(one, ReadWeights) and one.kind == "tile"]
    assert sum(tiles) == 2 * steps
    # A scale for each gate, with its table, the tanh of the state and four operations; the input is copied beside it.
    assert count(image, Activate) <= 10 * steps + 2


@BITS
@DESIGNS
def test_products_of_one_input_share_tiles(bits: int, design: Design):
    sketch = Sketch(bits)
    x, picture = sketch.input(1, 1, 20), sketch.input(3, 4, 5)
    made = [sketch.convolution(x, outputs) for outputs in (3, 70, 1, 12, 270, 7)]
    made.append(sketch.convolution(x, 5, quantization=sketch.quantization(16)))
    made += [sketch.convolution(picture, 7, (2, 2)), sketch.convolution(picture, 9, (2, 2))]
    # Two parts of one layer, and another layer, whose results are pictures.
    sketch.nodes[-1] = dataclasses.replace(sketch.nodes[-1], layer=sketch.nodes[-2].layer)
    made.append(sketch.convolution(picture, 8, (2, 2)))
    outputs = [sketch.table(made[1]), *made[2:], sketch.elementwise("add", made[0], made[0])]
    image = run_exactly(sketch.network(*outputs), 3, design)
    if design is TPU_V1:
        tiles = [one.count for one in image.instructions if isinstance(one, ReadWeights) and one.kind == "tile"]
        assert sum(tiles) == 4


@BITS
@DESIGNS
def test_concatenated_inputs_of_a_product_share_rows(bits: int, design: Design):
    sketch = Sketch(bits)
    x = sketch.input(1, 3, 20)
    first = sketch.convolution(sketch.cut(x, 1, 1, 2), 35)
    second = sketch.table(sketch.convolution(sketch.input(1, 1, 11), 9))
    both = sketch.concatenate([sketch.cut(x, 1, 0, 1), first, second], 2)
    twice = sketch.concatenate([first, sketch.cut(x, 1, 2, 3)], 2)
    lone, other = sketch.convolution(first, 20), sketch.convolution(first, 11)
    again = [sketch.concatenate([lone, other, lone], 2), sketch.concatenate([lone, lone], 2)]  # in two places of a row
    outputs = [sketch.convolution(both, 21), sketch.convolution(both, 4), sketch.convolution(twice, 12), first]
    outputs += [sketch.convolution(one, 21) for one in again]
    run_exactly(sketch.network(*outputs), 5, design)


def test_images_for_other_batches_share_the_weights():
    sketch = Sketch()
    network = sketch.network(sketch.convolution(sketch.convolution(sketch.input(6, 6, 9), 33, (3, 3)), 300))
    own = compile_image(network, batch=8, design=TPU_V1)
    for batch in (1, 2, 5, 16):
        other = compile_image(network, batch=batch, design=TPU_V1, known=own.weights)
        alone = compile_image(network, batch=batch, design=TPU_V1)
        assert other.weights is own.weights and other.instructions == alone.instructions
        np.testing.assert_array_equal(alone.weights, own.weights)
    small = compile_image(network, batch=8, design=SMALL, known=own.weights)
    assert len(small.weights) != len(own.weights)


def test_images_for_another_array_have_weights_of_their_own():
    sketch = Sketch()
    network = sketch.network(sketch.convolution(sketch.input(1, 1, 5), 3))
    for arrays in ((8, 16), (256, 255)):
        one, other = (dataclasses.replace(TPU_V1, array=array) for array in arrays)
        shared = compile_image(
            network, batch=4, design=other, known=compile_image(network, batch=4, design=one).weights
        )
        np.testing.assert_array_equal(shared.weights, compile_image(network, batch=4, design=other).weights)


def test_slices_that_overlap_take_no_more_tiles():
    sketch = Sketch()
    whole = sketch.convolution(sketch.input(1, 1, 256), 256)
    network = sketch.network(*(sketch.table(sketch.cut(whole, 2, first, first + 200)) for first in range(9)))
    assert len(compile_image(network, batch=4, design=TPU_V1).weights) < 4 * 256 * 256
