from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from anytpu.engine.kernels import fast_kernels, fuse_other_sums
from anytpu.engine.products import is_small
from engine.kernel_switch import compiled


def arrays(*shapes, dtype="float32"):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape), dtype) for shape in shapes]


def product(left, right, dtype="float32", preferred=None):
    """Return the operands and parameters of a traced matrix product."""
    operands = [jax.ShapeDtypeStruct(shape, dtype) for shape in (left, right)]
    (equation,) = jax.make_jaxpr(lambda a, b: jnp.matmul(a, b, preferred_element_type=preferred))(*operands).eqns
    return *(v.aval for v in equation.invars), equation.params


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ((5,), (5, 256), True),
        ((1, 5), (5, 256), True),
        ((16, 1), (1, 16), True),
        ((256, 3), (3,), True),
        ((8,), (8,), True),
        ((2, 5), (5, 256), False),
        ((1, 100), (100, 100), False),
        ((3, 1, 5), (3, 5, 4), False),
    ],
)
def test_small_products_with_a_vector_are_sums(left, right, expected):
    assert is_small(*product(left, right)) is expected


def test_half_precision_and_other_results_stay_products():
    assert not is_small(*product((5,), (5, 4), "bfloat16"))
    assert not is_small(*product((5,), (5, 4), "int32"))
    with jax.enable_x64(True):
        assert not is_small(*product((5,), (5, 4), "float32", "float64"))


@pytest.mark.parametrize("shapes", [((1, 5), (5, 33)), ((5,), (5, 33)), ((7, 1), (1, 9)), ((4, 3, 6), (6,))], ids=str)
def test_the_numbers_and_gradients_are_those_of_the_product(shapes):
    def train(left, right):
        result, pull = jax.vjp(jnp.matmul, left, right)
        return result, pull(jnp.cos(result))

    left, right = arrays(*shapes)
    got, want = (jax.tree.leaves(compiled(train, left, right, fast=fast)) for fast in (True, False))
    for ours, own in zip(got, want, strict=True):
        assert (ours.shape, ours.dtype) == (own.shape, own.dtype)
        np.testing.assert_allclose(ours, own, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("axes", [(((0,), (1,)), ((), ())), (((1, 0), (0, 1)), ((), ()))], ids=str)
def test_any_axes(axes):
    left, right = arrays((4, 3), (3, 4))
    if len(axes[0][0]) == 1:
        right = right[:1]
        left = left[:, :1]
        axes = (((0,), (1,)), ((), ()))
    dot = lambda a, b: lax.dot_general(a, b, axes)  # noqa: E731
    got, want = (compiled(dot, left, right, fast=fast) for fast in (True, False))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    ("left", "right", "kept", "over"),
    [
        ((3, 5, 7), (3, 5, 11), 0, 2),
        ((3, 5, 7, 2), (3, 5), 0, 2),
        ((2, 3, 1, 7), (2, 3, 1, 4, 6), 1, 2),
        ((2, 3, 5, 4), (2, 3, 5, 4), 1, 3),
        ((2, 0, 5, 4), (2, 0, 5, 3), 1, 2),
        ((2, 3, 4, 5, 6), (2, 3, 4, 5), 2, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sums_over_several_leading_axes_are_products_of_matrices(left, right, kept, over, dtype):
    batch, summed = tuple(range(kept)), tuple(range(kept, kept + over))
    numbers = (summed, summed), (batch, batch)

    def train(left, right):
        dot = lambda a, b: lax.dot_general(a, b, numbers, preferred_element_type="float32")  # noqa: E731
        result, pull = jax.vjp(dot, left, right)
        return result, pull(jnp.cos(result))

    left, right = arrays(left, right, dtype=dtype)
    got, want = (jax.tree.leaves(compiled(train, left, right, fast=fast)) for fast in (True, False))
    for ours, own in zip(got, want, strict=True):
        assert (ours.shape, ours.dtype) == (own.shape, own.dtype)
        tolerance = 1e-5 if ours.dtype == "float32" else 2e-2
        np.testing.assert_allclose(ours.astype("float32"), own.astype("float32"), rtol=tolerance, atol=tolerance)


def test_products_of_small_integers_stay_as_they_are():
    dot = lambda a, b: jnp.einsum("btd,btf->df", *(x.astype("int4") for x in (a, b)), preferred_element_type="int32")  # noqa: E731
    ones = np.ones((2, 3, 4), "int8")
    np.testing.assert_array_equal(compiled(dot, ones, ones, fast=True), np.full((4, 4), 6))


@pytest.mark.parametrize("replicas", [None, 4])
def test_the_gradient_of_a_layers_weights_copies_no_operand(replicas):
    rows = [jax.ShapeDtypeStruct((4 if replicas else 1, 16, 64, size), jnp.float32) for size in (128, 256)]

    def gradient(x, slopes):
        back = lambda x, slopes: jax.vjp(lambda weights: x @ weights, jnp.zeros((128, 256)))[1](slopes)[0]  # noqa: E731
        return jax.vmap(back)(x, slopes) if replicas else back(x[0], slopes[0])

    with fast_kernels():
        text = str(jax.jit(gradient).lower(*rows).as_text())
    products = re.findall(r"dot_general .*contracting_dims = \[(.*?)\] x \[(.*?)\]", text)
    assert products == [("1", "1") if replicas else ("0", "0")]


def test_a_product_becomes_sums_inside_the_switch_only():
    left, right = arrays((1, 5), (5, 33))

    def text() -> str:
        return jax.jit(lambda a, b: a @ b).lower(left, right).as_text()

    with fast_kernels():
        fast = text()
    assert "dot_general" in text()
    assert "dot_general" not in fast


def residual_loss(weights, x):
    for weight in weights:
        x = x + jnp.tanh(x - jnp.mean(x, -1, keepdims=True)) @ weight
    return jnp.sum(x * x)


def step_of(loss, *arguments) -> jax.stages.Compiled:
    """Compile the gradient of a loss as a virtual core does."""
    with fast_kernels():
        lowered = jax.jit(jax.grad(lambda *values: loss(*values))).lower(*arguments)
    fuse_other_sums(lowered)
    return lowered.compile()


def additions_of_a_step(blocks: int, rows: int) -> int:
    """Return the additions in the compiled gradients of residual blocks, counted in each fusion."""
    weights = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * blocks
    step = step_of(residual_loss, weights, jax.ShapeDtypeStruct((rows, 64), jnp.float32))
    return len(re.findall(r" add\(", str(step.as_text())))


@pytest.mark.parametrize(("rows", "is_linear"), [(512, True), (8, False)])
def test_a_large_sum_of_gradients_is_computed_once_however_deep_the_network(rows, is_linear):
    four, eight, sixteen = (additions_of_a_step(blocks, rows) for blocks in (4, 8, 16))
    assert (sixteen - eight == 2 * (eight - four)) is is_linear


def test_a_sum_of_gradients_that_no_product_reads_is_fused_and_takes_no_memory():
    def loss(x):
        return jnp.sum(x**2 * jnp.sin(x) + jnp.exp(-x * x) * x + jnp.tanh(x) * x)

    step = step_of(loss, jax.ShapeDtypeStruct((1000, 1000), jnp.float32))
    assert "call(" not in str(step.as_text())
    assert step.memory_analysis().temp_size_in_bytes == 0


def test_gradients_of_residual_blocks_are_those_of_the_fused_sums():
    *weights, x = arrays((64, 64), (64, 64), (64, 64), (512, 64))
    weights = [weight / 8 for weight in weights]
    got, want = (compiled(jax.grad(residual_loss), weights, x, fast=fast) for fast in (True, False))
    for ours, own in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, own, rtol=1e-5, atol=1e-4)
