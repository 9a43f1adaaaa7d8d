from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from anytpu.planning.floor.work import products_of

NHWC = ("NHWC", "HWIO", "NHWC")


def spec(*shape: int, dtype: Any = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def counted(step: Any, *specs: Any) -> dict[str, float]:
    flops, uncounted = products_of(jax.make_jaxpr(step)(*specs))
    assert uncounted == []
    return dict(flops)


def convolution(stride: int, groups: int = 1) -> Any:
    def convolve(kernel: Any, image: Any) -> Any:
        return lax.conv_general_dilated(
            image, kernel, (stride, stride), "SAME", feature_group_count=groups, dimension_numbers=NHWC
        )

    return convolve


def looped(weights: Any, x: Any) -> Any:
    return lax.scan(lambda carry, weight: (carry @ weight, None), x, weights)[0]


IMAGE = spec(2, 28, 28, 4)
WITHOUT_LOOPS = [
    (lambda x, w: x @ w, (spec(64, 128), spec(128, 32))),
    (lambda x: jnp.einsum("bhqd,bhkd->bhqk", x, x), (spec(4, 2, 32, 64),)),
    (convolution(2), (spec(3, 3, 4, 8), IMAGE)),
    (convolution(1, groups=4), (spec(3, 3, 1, 8), IMAGE)),
    (jax.grad(lambda kernel, image: convolution(2)(kernel, image).sum()), (spec(3, 3, 4, 8), IMAGE)),
    (jax.grad(lambda image, kernel: convolution(2)(kernel, image).sum()), (IMAGE, spec(3, 3, 4, 8))),
]


@pytest.mark.parametrize(("step", "specs"), WITHOUT_LOOPS)
def test_it_counts_as_jax_does(step: Any, specs: Any):
    of_jax: Any = jax.jit(step).lower(*specs).cost_analysis()
    assert sum(counted(step, *specs).values()) == of_jax["flops"]


def test_a_loop_counts_as_often_as_it_runs():
    weights, x = spec(5, 16, 16), spec(8, 16)
    assert counted(looped, weights, x) == {"bf16": 5 * 2 * 8 * 16 * 16}
    backward = jax.grad(lambda weights, x: looped(weights, x).sum())
    # The last round's carry is not needed: forward the loss, backward the gradient of x.
    assert counted(backward, weights, x) == {"bf16": (3 * 5 - 2) * 2 * 8 * 16 * 16}


def test_a_loop_of_unknown_length_is_named():
    def step(count: Any, x: Any) -> Any:
        return lax.while_loop(lambda carry: carry[0] < count, lambda carry: (carry[0] + 1, carry[1] @ x), (0, x))

    flops, (said,) = products_of(jax.make_jaxpr(step)(spec(dtype="int32"), spec(4, 4)))
    assert not flops
    assert said.startswith(f"the operation 'while', at {__file__}:")
    assert said.endswith(".step): its number of iterations is not known, so none is counted")


def test_shapes_inside_of_a_shard_map_are_of_one_device():
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    rows, columns = PartitionSpec("data", "model"), PartitionSpec("model")
    step = jax.shard_map(
        lambda x, w: lax.psum(x @ w, "model"), mesh=mesh, in_specs=(rows, columns), out_specs=PartitionSpec("data")
    )
    assert counted(step, spec(8, 4), spec(4, 6)) == {"bf16": 2 * 8 * 4 * 6}
    repeated = jax.shard_map(
        lambda x, w: x @ w, mesh=mesh, in_specs=(PartitionSpec("data"),) * 2, out_specs=PartitionSpec("data")
    )
    assert counted(repeated, spec(8, 4), spec(16, 6)) == {"bf16": 8 * (2 * 2 * 4 * 6)}


def test_ragged_products_forward_and_backward():
    x, w, sizes = spec(32, 4), spec(3, 4, 5), spec(3, dtype="int32")
    assert counted(lax.ragged_dot, x, w, sizes) == {"bf16": 2 * 32 * 4 * 5}
    backward = jax.grad(lambda x, w, sizes: lax.ragged_dot(x, w, sizes).sum(), argnums=(0, 1))
    assert counted(backward, x, w, sizes) == {"bf16": 2 * 2 * 32 * 4 * 5}


def test_a_kernel_counts_for_each_cell_of_its_grid():
    def kernel(x: Any, w: Any, result: Any) -> None:
        result[...] = x[...] @ w[...]

    product = pl.pallas_call(
        kernel,
        grid=(4, 2),
        in_specs=[pl.BlockSpec((16, 64), lambda i, j: (i, 0)), pl.BlockSpec((64, 128), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((16, 128), lambda i, j: (i, j)),
        out_shape=spec(64, 256),
    )
    assert counted(product, spec(64, 64), spec(64, 256)) == {"bf16": 2 * 64 * 64 * 256}


def test_the_cheapest_branch_counts():
    def step(flag: Any, x: Any) -> Any:
        return lax.cond(flag, lambda x: x @ x @ x, lambda x: x @ x, x)

    assert counted(step, spec(dtype="bool"), spec(8, 8)) == {"bf16": 2 * 8**3}


def test_what_a_compiler_leaves_out_does_not_count():
    def dead(x: Any) -> Any:
        _ = x @ x
        return x + 1

    def twice(x: Any) -> Any:
        return (x.astype("bfloat16") @ x.T.astype("bfloat16")).sum() + (
            x.astype("bfloat16") @ x.T.astype("bfloat16")
        ).max()

    assert counted(dead, spec(8, 8)) == {}
    assert counted(jax.jit(dead), spec(8, 8)) == {}
    assert counted(twice, spec(8, 8)) == {"bf16": 2 * 8**3}


@pytest.mark.parametrize(
    ("left", "right", "precision", "dtype"),
    [
        ("float32", "float32", None, "bf16"),
        ("float32", "float32", "high", "bf16x3"),
        ("float32", "float32", "highest", "bf16x6"),
        ("bfloat16", "bfloat16", "highest", "bf16"),
        ("int8", "int8", None, "s8"),
        ("int4", "int4", None, "s4"),
        ("float8_e4m3fn", "float8_e5m2", None, "f8"),
        ("bfloat16", "int8", None, "bf16"),
    ],
)
def test_the_type_is_that_which_the_matrix_units_multiply(left: str, right: str, precision: Any, dtype: str):
    def step(x: Any, w: Any) -> Any:
        return lax.dot(x, w, precision=precision, preferred_element_type="float32")

    assert counted(step, spec(8, 8, dtype=left), spec(8, 8, dtype=right)) == {dtype: 2 * 8**3}


def transposed_row(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w + 1).T[:, -1]


def prefill(x: Any, weights: Any) -> Any:
    """Layers whose tokens are mixed, of which the last token is returned."""
    mixed = lax.scan(lambda x, w: (x + x @ x.T @ x @ w, None), x, weights)[0]
    return (mixed @ weights[0])[-1]


ROWS, WEIGHT, PLACE = spec(16, 8), spec(8, 32), spec(dtype="int32")
ROW = 2 * 8 * 32
BATCHED, OUTPUT = spec(2, 16, 8), spec(8, 32)
PARTS = [
    (lambda x, w: (x @ w)[:, -1], (BATCHED, OUTPUT), 2 * ROW),
    (lambda x, w: (x @ w)[-1], (ROWS, WEIGHT), ROW),
    (lambda x, w: (x @ w)[:, ::4], (ROWS, WEIGHT), 16 * ROW / 4),
    (lambda x, w: jnp.exp(x @ w)[2:5], (ROWS, WEIGHT), 3 * ROW),
    (transposed_row, (ROWS, WEIGHT), ROW),
    (jax.jit(transposed_row), (ROWS, WEIGHT), ROW),
    (lambda x, w: (x @ w).reshape(2, 8, 32)[0], (ROWS, WEIGHT), ROW),
    (lambda x, w: (x @ w).reshape(16, 4, 8)[3], (ROWS, WEIGHT), ROW),
    (lambda x, w: (x @ w).sum(1)[:4], (ROWS, WEIGHT), 4 * ROW),
    (lambda x, w: (x @ w @ w.T)[-1], (ROWS, WEIGHT), 2 * ROW),
    (lambda x, w, n: lax.dynamic_slice(x @ w, (n, 0), (2, 32)), (ROWS, WEIGHT, PLACE), 2 * ROW),
    (lambda x, w, n: jnp.take(x @ w, n, axis=0), (ROWS, WEIGHT, PLACE), ROW),
    (
        lambda x, w, n: jnp.take(jax.nn.relu(x @ w).T, n, axis=1),
        (ROWS, WEIGHT, spec(3, dtype="int32")),
        ROW,
    ),
    (lambda x, w: (x @ w)[:4].sum() + (x @ w).max(), (ROWS, WEIGHT), 16 * ROW),
    (
        lambda x, w, f: lax.cond(f, lambda y: y[:4], lambda y: y[:4] * 2, x @ w),
        (ROWS, WEIGHT, spec(dtype="bool")),
        4 * ROW,
    ),
    (lambda x, w: jnp.concatenate([-(x @ w)[:, 16:], (x @ w)[:, :16]], 1), (ROWS, WEIGHT), 16 * ROW),
    (lambda x, w: jnp.concatenate([-part for part in jnp.split(x @ w, 2, axis=1)], 1), (ROWS, WEIGHT), 16 * ROW),
    (lambda x, w: (x @ w)[::2] + (x @ w)[1::2], (ROWS, WEIGHT), 16 * ROW),
    (lambda x, w: (x @ w)[1:9] + (x @ w)[:8], (ROWS, WEIGHT), 8 * ROW),
    (lambda x, w: (x @ w).at[:8].set(0.0), (ROWS, WEIGHT), 0),
    # All tokens but of the last layer, whose product with its own transpose needs all keys and values.
    (
        prefill,
        (ROWS, spec(5, 8, 8)),
        4 * (2 * 2 * 16 * 16 * 8 + 2 * 16 * 8 * 8) + 2 * 2 * 16 * 8 + 2 * 8 * 8 + 2 * 8 * 8,
    ),
]


@pytest.mark.parametrize(("step", "specs", "flops"), PARTS)
def test_of_a_product_what_a_slice_behind_it_takes_counts(step: Any, specs: Any, flops: float):
    assert sum(counted(step, *specs).values()) == flops


@pytest.mark.parametrize(
    ("taken", "share"),
    [
        (lambda y: y[:2], 2 / 4),  # of the images
        (lambda y: y[..., :3], 3 / 8),  # of the features
        (lambda y: y[:1, ..., :4], 1 / 8),
        (lambda y: y.transpose(3, 0, 1, 2)[:2], 2 / 8),
    ],
)
def test_of_a_convolution_a_slice_behind_it_counts(taken, share):
    kernel, images = jax.ShapeDtypeStruct((3, 3, 4, 8), "float32"), jax.ShapeDtypeStruct((4, 16, 16, 4), "float32")

    def flops(job):
        return products_of(jax.make_jaxpr(job)(kernel, images))[0].total()

    every = flops(convolution(1))
    assert flops(lambda *both: taken(convolution(1)(*both))) == share * every > 0


def test_of_some_positions_of_a_convolution_no_more_counts_than_is_certain():
    kernel, images = jax.ShapeDtypeStruct((3, 3, 4, 8), "float32"), jax.ShapeDtypeStruct((4, 16, 16, 4), "float32")

    def flops(job):
        return products_of(jax.make_jaxpr(job)(kernel, images))[0].total()

    rows = flops(lambda *both: convolution(1)(*both)[:, :12])
    # 12 of 16 rows at the edge of which a tap is on the padding: none of those left out may have been.
    assert 0.6 < rows / flops(convolution(1)) < 12 / 16 + 1e-9


def test_two_convolutions_behind_each_other():
    kernel = jax.ShapeDtypeStruct((3, 3, 4, 4), "float32")
    images = jax.ShapeDtypeStruct((4, 16, 16, 4), "float32")

    def flops(job):
        return products_of(jax.make_jaxpr(job)(kernel, images))[0].total()

    def both(kernel, images):
        return convolution(1)(kernel, convolution(1)(kernel, images))

    assert flops(lambda *one: both(*one)[:1]) == flops(both) / 4
    # Two features of the second need all of the first.
    assert flops(lambda *one: both(*one)[..., :2]) == flops(both) * 3 / 4
