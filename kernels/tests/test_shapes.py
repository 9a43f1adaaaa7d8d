"""Calls whose arrays do not fit together, as a program from elsewhere may have them, are refused before they run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("anytpu_kernels", reason="the kernels are not installed: scripts/venv builds them where g++ is")
from anytpu_kernels import library

BATCH, TIME, FEATURES, UNITS = 4, 3, 2, 5
DEPTH = FEATURES + 1 + UNITS


def call(name, results, operands, **attributes):
    """Run one call with operands of these shapes; one that is not of floats has `bool` or `int` before its shape."""
    library.load()
    arrays = [
        jnp.zeros(shape[1:], "bool" if shape[0] is bool else "int32")
        if shape[:1] in ((bool,), (int,))
        else jnp.zeros(shape, "float32")
        for shape in operands
    ]
    specs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in results]
    return jax.block_until_ready(jax.ffi.ffi_call(name, specs)(*arrays, **attributes))


def convolution(**changed):
    """Return the attributes of a convolution of 2 images of 5 x 5 with 3 features, and a kernel of 3 x 3, into 4."""
    attributes = {
        "role": 0,
        "image": (2, 3, 5, 5),
        "image_strides": (75, 1, 15, 3),
        "kernel": (4, 3, 3, 3),
        "kernel_strides": (1, 4, 36, 12),
        "output": (2, 4, 3, 3),
        "output_strides": (36, 1, 12, 4),
        "strides": (1, 1),
        "dilation": (0, 0),
        "before": (0, 0),
        "after": (0, 0),
        "parts": (1, 0, 0, 0),
    } | changed
    return {key: np.int64(value) if key == "role" else np.array(value, np.int64) for key, value in attributes.items()}


CALLS = {
    "anytpu_column_moments": ([(6,), (6,)], [(8, 6)]),
    "anytpu_column_products": ([(6,), (6,)], [(8, 6), (8, 6), (6,)]),
    "anytpu_lstm_forward": (
        [
            *[(BATCH, UNITS)] * 2,
            (BATCH, TIME, UNITS),
            (TIME, BATCH, DEPTH),
            (TIME, BATCH, 4 * UNITS),
            *[(TIME, BATCH, UNITS)] * 2,
        ],
        [
            (BATCH, TIME, FEATURES),
            *[(BATCH, UNITS)] * 2,
            (bool, BATCH, TIME),
            (FEATURES, 4 * UNITS),
            (4 * UNITS,),
            (UNITS, 4 * UNITS),
        ],
    ),
    "anytpu_lstm_backward": (
        [(BATCH, TIME, FEATURES), *[(BATCH, UNITS)] * 2, (TIME, BATCH, 4 * UNITS)],
        [
            *[(BATCH, UNITS)] * 2,
            (BATCH, TIME, UNITS),
            (bool, BATCH, TIME),
            (TIME, BATCH, 4 * UNITS),
            *[(TIME, BATCH, UNITS)] * 2,
            (FEATURES, 4 * UNITS),
            (UNITS, 4 * UNITS),
        ],
    ),
    "anytpu_gru_forward": (
        [(BATCH, UNITS), (BATCH, TIME, UNITS), (TIME, BATCH, DEPTH), (TIME, BATCH, 4 * UNITS)],
        [
            (BATCH, TIME, FEATURES),
            (BATCH, UNITS),
            (bool, BATCH, TIME),
            (FEATURES, 3 * UNITS),
            (2, 3 * UNITS),
            (UNITS, 3 * UNITS),
        ],
    ),
    "anytpu_gru_backward": (
        [(BATCH, TIME, FEATURES), (BATCH, UNITS), (TIME, BATCH, 4 * UNITS)],
        [
            (BATCH, UNITS),
            (BATCH, TIME, UNITS),
            (bool, BATCH, TIME),
            (TIME, BATCH, DEPTH),
            (TIME, BATCH, 4 * UNITS),
            (FEATURES, 3 * UNITS),
            (UNITS, 3 * UNITS),
        ],
    ),
    "anytpu_row_sums": ([(BATCH, UNITS)], [(30, UNITS), (int, BATCH, TIME), (BATCH, TIME)]),
}
"""Shapes of the results and of the operands of calls that are right."""

ROWS, SLOPES = (TIME, BATCH, DEPTH), (TIME, BATCH, 4 * UNITS)


def smaller(shapes, index):
    """Return the shapes with one element less in the last axis of one of them."""
    shape = shapes[index]
    return [*shapes[:index], (*shape[:-1], shape[-1] - 1), *shapes[index + 1 :]]


def test_every_kernel_is_here():
    others = {"anytpu_convolution", "anytpu_row_update", "anytpu_sequence_weights"}
    assert {*CALLS, *others} == set(library.KERNELS)


@pytest.mark.parametrize("name", CALLS)
def test_shapes_that_fit_run(name):
    call(name, *CALLS[name])


@pytest.mark.parametrize(
    ("name", "side", "index"),
    [(name, side, index) for name, sides in CALLS.items() for side in (0, 1) for index in range(len(sides[side]))],
)
def test_an_array_that_is_too_small_is_refused(name, side, index):
    results, operands = CALLS[name]
    changed = (smaller(results, index), operands) if side == 0 else (results, smaller(operands, index))
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        call(name, *changed)
    assert f"{name.removeprefix('anytpu_')}: the shapes of its arrays do not fit together" in str(caught.value)


def test_a_convolution_inside_its_buffers_runs():
    (result,) = call("anytpu_convolution", [(2, 3, 3, 4)], [(2, 5, 5, 3), (3, 3, 3, 4)], **convolution())
    assert not result.any()


@pytest.mark.parametrize(
    "changed",
    [
        {"role": 3},
        {"role": -1},
        {"image_strides": (7500, 1, 15, 3)},
        {"image_strides": (-75, 1, 15, 3)},
        {"kernel_strides": (1, 4, 36, 1200)},
        {"output_strides": (36, 1, 12, 2**62)},
        {"image": (3, 3, 5, 5), "output": (3, 4, 3, 3)},
        {"image": (2, 3, 5)},
        {"image": ()},
        {"output": (1, 4, 3, 3)},
        {"output": (0, 4, 3, 3)},
        {"parts": (2, 150, 0, 0)},
        {"parts": (0, 0, 0, 0)},
        {"parts": (1, -1, 0, 0)},
        {"parts": (1,)},
    ],
    ids=str,
)
def test_a_convolution_beyond_its_buffers_is_refused(changed):
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        call("anytpu_convolution", [(2, 3, 3, 4)], [(2, 5, 5, 3), (3, 3, 3, 4)], **convolution(**changed))
    assert "convolution: the shapes of its arrays do not fit together" in str(caught.value)


def weights(result, rows=ROWS, slopes=SLOPES, first_row=0, first_column=0):
    attributes = {"first_row": np.int64(first_row), "first_column": np.int64(first_column)}
    return call("anytpu_sequence_weights", [result], [rows, slopes], **attributes)


def test_a_part_of_the_weights_runs():
    (result,) = weights((2, DEPTH - 1, 3 * UNITS), first_row=1, first_column=UNITS)
    assert not result.any()


@pytest.mark.parametrize(
    "changed",
    [
        {"result": (2, DEPTH, 3 * UNITS), "first_row": 1},
        {"result": (2, DEPTH - 1, 3 * UNITS), "first_column": UNITS + 1},
        {"result": (2, DEPTH, UNITS), "first_row": -1},
        {"result": (2, DEPTH, UNITS), "first_column": -1},
        {"result": (2, DEPTH, UNITS), "first_column": 2**63 - 1},
        {"result": (3, DEPTH, UNITS)},
        {"result": (2, DEPTH, UNITS), "rows": (TIME, BATCH - 1, DEPTH)},
        {"result": (2, DEPTH, UNITS), "slopes": (TIME - 1, BATCH, 4 * UNITS)},
        {"result": (DEPTH, UNITS)},
    ],
    ids=str,
)
def test_weights_beyond_their_buffers_are_refused(changed):
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        weights(**changed)
    assert "sequence_weights: the shapes of its arrays do not fit together" in str(caught.value)


TABLE = (30, UNITS)
BAGS = [(int, BATCH, TIME), (BATCH, TIME), (BATCH, UNITS)]


def update(results=3, operands=(TABLE, TABLE, TABLE, (), *BAGS, *BAGS), rule=3, numbers=(9, 0.1, 0.1, 0.1)):
    shapes = [TABLE] * results if isinstance(results, int) else results
    return call("anytpu_row_update", shapes, operands, rule=np.int64(rule), numbers=np.array(numbers, "float32"))


def test_an_update_of_arrays_that_fit_runs():
    assert len(update()) == 3
    assert len(update(operands=(TABLE, TABLE, TABLE, ()))) == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"results": 2},
        {"results": [TABLE, TABLE, (29, UNITS)]},
        {"results": [(30, UNITS - 1), TABLE, TABLE]},
        {"rule": 1},
        {"rule": 5},
        {"rule": -1},
        {"numbers": (9, 0.1, 0.1)},
        {"operands": ()},
        {"operands": (TABLE, TABLE, TABLE)},
        {"operands": ((30 * UNITS,), TABLE, TABLE, ())},
        {"operands": (TABLE, TABLE, (29, UNITS), ())},
        {"operands": (TABLE, TABLE, TABLE, (1,))},
        {"operands": (TABLE, TABLE, TABLE, (int,))},
        {"operands": (TABLE, TABLE, TABLE, (), *BAGS[:2])},
        {"operands": (TABLE, TABLE, TABLE, (), (BATCH, TIME), *BAGS[1:])},
        {"operands": (TABLE, TABLE, TABLE, (), (int, BATCH * TIME), *BAGS[1:])},
        {"operands": (TABLE, TABLE, TABLE, (), BAGS[0], (BATCH, TIME - 1), BAGS[2])},
        {"operands": (TABLE, TABLE, TABLE, (), *BAGS[:2], (BATCH - 1, UNITS))},
        {"operands": (TABLE, TABLE, TABLE, (), *BAGS[:2], (BATCH, UNITS + 1))},
        {"operands": (TABLE, TABLE, TABLE, (), *BAGS[:2], (BATCH * UNITS,))},
    ],
    ids=str,
)
def test_an_update_beyond_its_arrays_is_refused(changed):
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        update(**changed)
    assert "row_update: the shapes of its arrays do not fit together" in str(caught.value)
