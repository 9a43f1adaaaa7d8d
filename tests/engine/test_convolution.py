import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from anytpu.engine.convolution import respelled
from anytpu.engine.kernels import fast_kernels

NHWC = ("NHWC", "HWIO", "NHWC")
SETTINGS = [  # image, kernel, strides, padding, dilation, groups
    ((2, 8, 8, 1), (3, 3, 1, 4), (1, 1), "SAME", (1, 1), 1),
    ((3, 7, 6, 4), (3, 3, 4, 8), (2, 2), "SAME", (1, 1), 1),
    ((3, 7, 6, 4), (5, 5, 4, 2), (1, 1), "VALID", (1, 1), 1),
    ((1, 9, 9, 3), (3, 2, 3, 5), (1, 2), "SAME", (2, 2), 1),
    ((4, 5, 5, 6), (1, 1, 6, 3), (1, 1), "SAME", (1, 1), 1),
    ((2, 6, 6, 4), (3, 3, 1, 4), (1, 1), "SAME", (1, 1), 4),
    ((2, 6, 6, 4), (3, 3, 1, 8), (2, 2), "SAME", (1, 1), 4),
    ((2, 6, 6, 4), (3, 3, 2, 6), (1, 1), "SAME", (1, 1), 2),
    ((2, 5, 5, 3), (5, 5, 3, 4), (1, 1), "VALID", (1, 1), 1),
]


def arrays(*shapes, dtype=np.float32):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape).astype(dtype)) for shape in shapes]


def compiled(function, *args, fast: bool):
    """Compile a function in the body of a loop that runs once, with the kernels on or off, from a fresh function."""

    def once(*args):
        zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(function, *args))
        return lax.fori_loop(0, args[0].shape[0] // args[0].shape[0], lambda _, __: function(*args), zeros)

    if not fast:
        return jax.jit(once).lower(*args).compile()(*args)
    with fast_kernels():
        return jax.jit(once).lower(*args).compile()(*args)


def loss_of(strides, padding, dilation, groups, numbers=NHWC):
    def loss(x, w):
        y = lax.conv_general_dilated(
            x, w, strides, padding, rhs_dilation=dilation, dimension_numbers=numbers, feature_group_count=groups
        )
        return jnp.sum(jnp.sin(y)), y

    return loss


def is_close(ours, own, tolerance):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(own), strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype
        scale = max(1.0, float(jnp.max(jnp.abs(other))))
        assert float(jnp.max(jnp.abs(one - other))) <= tolerance * scale


@pytest.mark.parametrize(("image", "kernel", "strides", "padding", "dilation", "groups"), SETTINGS)
def test_the_result_and_both_gradients_are_those_of_jax(image, kernel, strides, padding, dilation, groups):
    x, w = arrays(image, kernel)
    step = jax.value_and_grad(loss_of(strides, padding, dilation, groups), argnums=(0, 1), has_aux=True)
    is_close(compiled(step, x, w, fast=True), compiled(step, x, w, fast=False), 1e-5)


@pytest.mark.parametrize(("image", "kernel", "strides", "padding", "dilation", "groups"), SETTINGS)
def test_in_double_precision(image, kernel, strides, padding, dilation, groups):
    with jax.enable_x64(True):
        x, w = arrays(image, kernel, dtype=np.float64)
        step = jax.value_and_grad(loss_of(strides, padding, dilation, groups), argnums=(0, 1), has_aux=True)
        is_close(compiled(step, x, w, fast=True), compiled(step, x, w, fast=False), 1e-12)


def test_over_replicas():
    x, w = arrays((3, 2, 6, 6, 4), (3, 3, 4, 8))
    step = jax.vmap(jax.grad(loss_of((1, 1), "SAME", (1, 1), 1), argnums=(0, 1), has_aux=True), in_axes=(0, None))
    is_close(compiled(step, x, w, fast=True), compiled(step, x, w, fast=False), 1e-5)


@pytest.mark.parametrize("numbers", [("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NCHW"), ("CHWN", "IHWO", "NHWC")])
def test_any_order_of_axes(numbers):
    sizes = {"N": 2, "C": 4, "H": 5, "W": 6, "I": 4, "O": 3}
    x, w = arrays(*[tuple(3 if c in "HW" and "I" in order else sizes[c] for c in order) for order in numbers[:2]])
    step = jax.value_and_grad(loss_of((1, 1), "SAME", (1, 1), 1, numbers), argnums=(0, 1), has_aux=True)
    is_close(compiled(step, x, w, fast=True), compiled(step, x, w, fast=False), 1e-5)


@pytest.mark.parametrize("rank", [1, 3])
def test_one_and_three_spatial_axes(rank):
    x, w = arrays((2, 4, *[5] * rank), (3, 4, *[3] * rank))
    step = jax.grad(lambda x, w: jnp.sum(lax.conv(x, w, (1,) * rank, "SAME") ** 2), argnums=(0, 1))
    is_close(compiled(step, x, w, fast=True), compiled(step, x, w, fast=False), 1e-4)


def test_half_precision_is_left_to_jax():
    x, w = (array.astype(jnp.bfloat16) for array in arrays((2, 6, 6, 4), (3, 3, 4, 8)))
    step = jax.value_and_grad(loss_of((1, 1), "SAME", (1, 1), 1), has_aux=True)
    is_close(compiled(step, x, w, fast=True), compiled(step, x, w, fast=False), 2e-2)


def test_transposed_convolution():
    x, w = arrays((2, 4, 4, 3), (3, 3, 3, 5))
    step = jax.grad(lambda x, w: jnp.sum(lax.conv_transpose(x, w, (2, 2), "SAME") ** 2), argnums=(0, 1))
    is_close(compiled(step, x, w, fast=True), compiled(step, x, w, fast=False), 1e-5)


def test_the_switch_is_off_outside_and_in_other_threads():
    from concurrent.futures import ThreadPoolExecutor

    x, w = arrays((2, 6, 6, 4), (3, 3, 4, 4))

    def lowered():
        step = jax.grad(lambda x, w: loss_of((1, 1), "SAME", (1, 1), 1)(x, w)[0], argnums=1)
        return jax.jit(step).lower(x, w).as_text()

    plain = lowered()
    with fast_kernels():
        assert lowered() != plain
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lowered).result() == plain
    assert lowered() == plain


def test_respelled_takes_the_parameters_of_the_primitive():
    x, w = arrays((2, 5, 5, 3), (3, 3, 3, 4))
    closed = jax.make_jaxpr(lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC))(x, w)
    (equation,) = [one for one in closed.eqns if one.primitive is lax.conv_general_dilated_p]
    own = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=NHWC)
    is_close(respelled(x, w, **equation.params), own, 1e-5)
