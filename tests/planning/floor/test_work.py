from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from anytpu.planning.floor.work import traced_work

NHWC = ("NHWC", "HWIO", "NHWC")


def spec(*shape: int, dtype: Any = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def counted(step: Any, *specs: Any) -> dict[str, float]:
    work = traced_work(jax.make_jaxpr(step)(*specs))
    assert work.uncounted == ()
    return dict(work.flops)


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

    work = traced_work(jax.make_jaxpr(step)(spec(dtype="int32"), spec(4, 4)))
    (said,) = work.uncounted
    assert not work.flops
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


ROWS, WEIGHT, PLACE = spec(16, 8), spec(8, 32), spec(dtype="int32")
PRODUCT = 2 * 16 * 8 * 32
PARTS = [
    # A part of a product, or of what follows from it.
    (lambda x, w: (x @ w)[-1], (ROWS, WEIGHT), 0),
    (lambda x, w: jnp.exp(x @ w)[2:5], (ROWS, WEIGHT), 0),
    (transposed_row, (ROWS, WEIGHT), 0),
    (jax.jit(transposed_row), (ROWS, WEIGHT), 0),
    (lambda x, w, n: lax.dynamic_slice(x @ w, (n, 0), (2, 32)), (ROWS, WEIGHT, PLACE), 0),
    (lambda x, w, n: jnp.take(x @ w, n, axis=0), (ROWS, WEIGHT, PLACE), 0),
    (lambda x, w: (x @ w)[1:9] + (x @ w)[:8], (ROWS, WEIGHT), 0),
    (lambda x, w: (x @ w).at[:8].set(0.0), (ROWS, WEIGHT), 0),
    (lambda kernel, image: convolution(2)(kernel, image)[:1], (spec(3, 3, 4, 8), IMAGE), 0),
    (lambda x, w, f: lax.cond(f, lambda y: y[:4], lambda y: y[:4] * 2, x @ w), (ROWS, WEIGHT, spec(dtype="bool")), 0),
    # All of it.
    (lambda x, w: (x @ w)[:4].sum() + (x @ w).max(), (ROWS, WEIGHT), PRODUCT),
    (lambda x, w: jnp.concatenate([-(x @ w)[:, 16:], (x @ w)[:, :16]], 1), (ROWS, WEIGHT), PRODUCT),
    (lambda x, w: jnp.concatenate([-part for part in jnp.split(x @ w, 2, axis=1)], 1), (ROWS, WEIGHT), PRODUCT),
    (lambda x, w: (x @ w)[::2] + (x @ w)[1::2], (ROWS, WEIGHT), PRODUCT),
    (lambda x, w, f: lax.cond(f, lambda y: y + 1, lambda y: y * 2, x @ w), (ROWS, WEIGHT, spec(dtype="bool")), PRODUCT),
]


@pytest.mark.parametrize(("step", "specs", "flops"), PARTS)
def test_a_product_counts_if_all_of_it_is_used(step: Any, specs: Any, flops: float):
    assert sum(counted(step, *specs).values()) == flops


VECTOR, TABLE, INDICES = spec(64), spec(100, 64), spec(3, dtype="int32")


def read(step: Any, *specs: Any) -> list[bool]:
    return [*traced_work(jax.make_jaxpr(step)(*specs)).is_read]


def written(step: Any, *specs: Any) -> list[bool]:
    return [*traced_work(jax.make_jaxpr(step)(*specs)).is_written]


def test_what_is_computed_with_is_read():
    assert read(lambda w, unused: w * 2, VECTOR, VECTOR) == [True, False]
    assert read(jax.jit(lambda w, unused: w * 2), VECTOR, VECTOR) == [True, False]


def test_what_only_passes_is_neither_read_nor_written():
    assert read(lambda w: (w, w.reshape(8, 8)), VECTOR) == [False]
    assert written(lambda w: (w, w + 1), VECTOR) == [False, True]


def test_the_same_result_twice_is_written_once():
    def step(w: Any) -> Any:
        doubled = w * 2
        return doubled, doubled

    assert written(step, VECTOR) == [True, False]


def test_a_table_from_which_rows_are_gathered_is_not_read_whole():
    assert read(lambda table, rows: table[rows], TABLE, INDICES) == [False, True]
    assert read(lambda table, rows: jnp.take(table.astype("bfloat16"), rows, axis=0) * 2, TABLE, INDICES) == [
        False,
        True,
    ]

    def train(table: Any, rows: Any) -> Any:
        return table - jax.grad(lambda table: (table[rows] ** 2).sum())(table)

    assert read(train, TABLE, INDICES) == [True, True]
    assert written(train, TABLE, INDICES) == [True]


def test_a_cache_that_is_updated_in_place_is_neither():
    def store(cache: Any, row: Any) -> Any:
        return lax.dynamic_update_slice(cache, row[None], (7, 0))

    assert (read(store, TABLE, VECTOR), written(store, TABLE, VECTOR)) == ([False, True], [False])

    def attend(cache: Any, row: Any) -> Any:
        cache = store(cache, row)
        return cache, cache @ row

    assert (read(attend, TABLE, VECTOR), written(attend, TABLE, VECTOR)) == ([True, True], [False, True])


def test_a_loop_reads_what_its_body_reads():
    def step(tables: Any, row: Any) -> Any:
        return lax.scan(lambda carry, table: (carry + table @ row, None), jnp.zeros(100), tables)[0]

    assert read(step, jax.ShapeDtypeStruct((5, 100, 64), "float32"), VECTOR) == [True, True]


def test_of_branches_only_what_all_read_is_known():
    def step(flag: Any, w: Any) -> Any:
        return lax.cond(flag, lambda w: w * 2, lambda w: w, w)

    flag = jax.ShapeDtypeStruct((), "bool")
    assert (read(step, flag, VECTOR), written(step, flag, VECTOR)) == ([True, False], [False])
