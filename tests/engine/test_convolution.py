import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from anytpu.engine import convolution as module
from anytpu.engine.convolution import (
    FORMS,
    ConvolutionShape,
    choose_form,
    is_depthwise,
    is_faster_as_matmuls,
    needs_rewriting,
    rewrite_convolution,
    shape_of,
)
from anytpu.engine.kernels import fast_kernels
from engine.kernel_switch import compiled

ORDERS = {1: ("NWC", "WIO", "NWC"), 2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}
TOLERANCE = {"float64": 1e-9, "float32": 1e-5}


def arrays(dtype: str, *shapes: tuple[int, ...]) -> list[jax.Array]:
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape), dtype) for shape in shapes]


def training(strides, padding, dilation, groups, space=2):
    """Return a function that convolves and pulls a gradient back to both operands."""

    def convolve(x, w):
        return lax.conv_general_dilated(
            x,
            w,
            (strides,) * space,
            padding,
            rhs_dilation=(dilation,) * space,
            dimension_numbers=ORDERS[space],
            feature_group_count=groups,
        )

    def train(x, w):
        y, pull = jax.vjp(convolve, x, w)
        return y, *pull(jnp.sin(y))

    return train


def assert_same(got, want, dtype: str) -> None:
    for ours, own in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert ours.dtype == own.dtype
        assert ours.shape == own.shape
        assert np.max(np.abs(ours - own)) <= TOLERANCE[dtype] * max(1, np.max(np.abs(own)))


def convolutions(function, *args) -> list:
    """Return the convolutions that a function traces to."""
    return [e for e in jax.make_jaxpr(function)(*args).eqns if e.primitive is lax.conv_general_dilated_p]


@pytest.fixture
def double():
    with jax.enable_x64(True):
        yield


CHANNELS = [(3, 3, 2, 1), (1, 1, 4, 1), (2, 4, 6, 2), (2, 4, 4, 4)]
"""Batch, features, filters and groups."""
KERNELS = [(1, 1), (3, 3), (2, 5)]
WINDOWS = [(1, 1, "SAME"), (2, 1, "SAME"), (2, 1, "VALID"), (1, 2, "VALID")]
GRID = [
    # A sixth of the grid: each kernel, each window and all channels in both dtypes, and all channels with each window.
    pytest.param(
        dtype, kernel, window, channels, marks=[] if (k + w + d) % 3 == 0 == (w + d + c) % 2 else pytest.mark.battery
    )
    for (d, dtype), (k, kernel), (w, window), (c, channels) in itertools.product(
        enumerate(["float32", "float64"]), enumerate(KERNELS), enumerate(WINDOWS), enumerate(CHANNELS)
    )
]


@pytest.mark.parametrize(("dtype", "kernel", "window", "channels"), GRID)
def test_a_convolution_and_its_gradients_keep_their_numbers(double, dtype, kernel, window, channels):
    strides, dilation, padding = window
    batch, features, filters, groups = channels
    x, w = arrays(dtype, (batch, 7, 10, features), (*kernel, features // groups, filters))
    train = training(strides, padding, dilation, groups)
    assert_same(compiled(train, x, w, fast=True), compiled(train, x, w, fast=False), dtype)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("groups", [1, 3])
def test_every_form_computes_the_same(double, form, strides, groups):
    x, w = arrays("float64", (2, 8, 9, 3), (3, 3, 3 // groups, 3))
    for equation in convolutions(training(strides, "SAME", 1, groups), x, w):
        shape = rewritten_shape(equation)
        if (form == "shifted products") != is_depthwise(shape) or (form.startswith("im2col") and shape.groups > 1):
            continue
        if form.startswith("im2col") and (form == "im2col by position") != (shape.positions < shape.taps):
            continue
        image, kernel = arrays("float64", *(v.aval.shape for v in equation.invars))
        got = rewrite_convolution(image, kernel, form=form, **equation.params)
        want = equation.primitive.bind(image, kernel, **equation.params)
        assert_same(got, want, "float64")


@pytest.mark.parametrize("column_bytes", [1, 1000, 1 << 24])
def test_columns_are_made_piece_by_piece(double, monkeypatch, column_bytes):
    monkeypatch.setattr("anytpu.engine.convolution.MAX_COLUMN_BYTES", column_bytes)
    x, w = arrays("float64", (6, 8, 9, 3), (3, 3, 3, 4))
    train = training(1, "SAME", 1, 1)
    assert_same(compiled(train, x, w, fast=True), compiled(train, x, w, fast=False), "float64")


@pytest.mark.parametrize("space", [1, 3])
def test_one_and_three_dimensions(double, space):
    x, w = arrays("float64", (2, *(6,) * space, 3), (*(3,) * space, 3, 4))
    train = training(2, "SAME", 1, 1, space)
    assert_same(compiled(train, x, w, fast=True), compiled(train, x, w, fast=False), "float64")


@pytest.mark.parametrize("each_its_own", [False, True])
def test_batched_over_replicas_inside_a_loop(double, each_its_own):
    x, w = arrays("float64", (8, 2, 6, 6, 3), (8, 3, 3, 3, 4) if each_its_own else (3, 3, 3, 4))
    train = training(1, "SAME", 1, 1)

    def steps(x, w):
        def body(_, state):
            x, w = state
            _, dx, dw = jax.vmap(train, in_axes=(0, 0 if each_its_own else None))(x, w)
            return x - 0.01 * dx, w - 0.01 * (dw if each_its_own else dw.sum(0))

        return lax.fori_loop(0, 3, body, (x, w))

    assert_same(compiled(steps, x, w, fast=True), compiled(steps, x, w, fast=False), "float64")


def test_a_gradient_of_replicas_together_stays_one_convolution():
    x, w = arrays("float32", (8, 2, 6, 6, 3), (3, 3, 3, 4))
    train = training(1, "SAME", 1, 1)
    gradient = jax.grad(lambda w: sum(jnp.sum(output) for output in jax.vmap(lambda x: train(x, w)[0])(x)))
    assert [e.params["batch_group_count"] for e in convolutions(gradient, w)][-1] == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_only_put_in_order(dtype):
    x, w = arrays(dtype, (2, 6, 6, 3), (3, 3, 3, 4))
    for equation in convolutions(training(1, "SAME", 1, 1), x, w):
        assert choose_form(rewritten_shape(equation)) == "channels last"
    got, want = (compiled(training(1, "SAME", 1, 1), x, w, fast=fast) for fast in (True, False))
    for ours, own in zip(got, want, strict=True):
        np.testing.assert_allclose(np.float32(ours), np.float32(own), rtol=0.05, atol=0.05)


def test_outside_the_switch_nothing_changes():
    x, w = arrays("float32", (2, 6, 6, 3), (3, 3, 3, 4))
    train = training(1, "SAME", 1, 1)

    def text() -> str:
        return jax.jit(lambda x, w: train(x, w)).lower(x, w).as_text()

    with fast_kernels():
        fast = text()
    assert "dim_numbers = [f, 0, 1, b]" in text()
    assert "dim_numbers = [f, 0, 1, b]" not in fast


def test_integers_and_empty_operands_are_left_alone():
    (equation,) = convolutions(
        lambda x, w: lax.conv(x, w, (1, 1), "SAME"), *arrays("int32", (1, 1, 4, 4), (1, 1, 3, 3))
    )
    assert not needs_rewriting(*(v.aval for v in equation.invars), equation.params)
    (equation,) = convolutions(
        lambda x, w: lax.conv(x, w, (1, 1), "SAME"), *arrays("float32", (0, 1, 4, 4), (1, 1, 3, 3))
    )
    assert not needs_rewriting(*(v.aval for v in equation.invars), equation.params)


def shape(
    batch=20, features=256, filters=256, kernel=(3, 3), output=(24, 24), padding=(0, 0), groups=1, dtype="float32"
):
    ones, borders = (1, 1), (padding, padding)
    return ConvolutionShape(
        batch, groups, features, filters, kernel, output, ones, borders, ones, ones, np.dtype(dtype)
    )


@pytest.mark.parametrize(
    ("convolution", "expected"),
    [
        (shape(), False),
        (shape(features=16, kernel=(1, 1)), True),
        (shape(features=1, filters=32, padding=(1, 1), output=(8, 8)), False),
        # Gradients of a kernel: its places are the kernel's, its taps are the image's.
        (shape(batch=256, features=20, kernel=(24, 24), output=(3, 3)), True),
        (shape(batch=64, features=20, filters=64, kernel=(28, 28), output=(3, 3)), False),
        (shape(batch=1, features=64, filters=32, kernel=(28, 28), output=(3, 3)), True),
        (shape(batch=32, features=64, filters=32, kernel=(8, 8), output=(3, 3), padding=(1, 1)), False),
        (shape(features=4, padding=(1, 1), dtype="float64"), True),
        (shape(features=1, kernel=(1, 1), dtype="bfloat16"), False),
    ],
)
def test_matrix_products_are_used_where_they_were_measured_to_be_faster(convolution, expected):
    assert is_faster_as_matmuls(convolution) is expected


@pytest.mark.parametrize(
    ("convolution", "expected"),
    [
        (shape(), "padded"),
        (shape(padding=(1, 1)), "channels last"),
        (shape(features=32), "padded"),
        (shape(features=31), "channels last"),
        (shape(groups=2), "channels last"),
        (shape(dtype="bfloat16"), "channels last"),
        # The gradient of a kernel, over a batch of 64 that fits in the cache.
        (shape(batch=32, features=64, filters=32, kernel=(12, 12), output=(3, 3)), "padded"),
    ],
)
def test_a_convolution_without_padding_gets_some(convolution, expected):
    assert choose_form(convolution) == expected


@pytest.mark.parametrize("strides", [1, 2, 3])
def test_a_convolution_that_gets_padding_keeps_its_numbers(strides):
    x, w = arrays("float32", (34, 9, 10, 33), (3, 3, 33, 35))
    w = w * 0.1  # The training takes the sine of the result. The sine of large values would amplify the rounding.
    train = training(strides, "VALID", 1, 1)
    assert "padded" in {choose_form(rewritten_shape(equation)) for equation in convolutions(train, x, w)}
    assert_same(compiled(train, x, w, fast=True), compiled(train, x, w, fast=False), "float32")


def test_a_large_kernel_over_a_large_image_is_never_written_out():
    assert choose_form(shape(kernel=(11, 11), dtype="float64")) == "channels last"


def rewritten_shape(equation) -> ConvolutionShape:
    """Return the shape of a traced convolution, as `rewrite_convolution` sees it."""
    found = []
    image, kernel = (jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars)

    def note(image, kernel):
        image, kernel = module._channels_last(image, kernel, equation.params)
        found.append(shape_of(image, kernel, equation.params))

    jax.eval_shape(note, image, kernel)
    assert found[0].output == tuple(
        np.delete(equation.outvars[0].aval.shape, np.array(equation.params["dimension_numbers"].out_spec[:2]))
    )
    return found[0]


def test_columns_are_counted():
    found = shape(batch=2, features=3, filters=5, kernel=(3, 3), output=(4, 4))
    assert found.column_bytes == 2 * 16 * 9 * 3 * 4
