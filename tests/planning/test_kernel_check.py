"""`tpu.check_kernel`: real Pallas kernels, the interpreter of JAX and the TPU's own compiler."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

import anytpu as tpu
from anytpu.errors import ProgramError, SettingError

X = jax.ShapeDtypeStruct((256, 256), "float32")


def product(x: Any, y: Any, out: Any) -> None:
    out[...] = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)


def matmul(x: Any, y: Any, block: int = 128, body: Callable[..., None] = product) -> Any:
    (m, k), n = x.shape, y.shape[1]
    return pl.pallas_call(
        body,
        grid=(m // block, n // block),
        in_specs=[pl.BlockSpec((block, k), lambda i, j: (i, 0)), pl.BlockSpec((k, block), lambda i, j: (0, j))],
        out_specs=pl.BlockSpec((block, block), lambda i, j: (i, j)),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.float32),
    )(x, y)


def elementwise(body: Callable[..., None], dtype: str = "float32", shape: tuple[int, ...] = (8, 128)) -> Any:
    out = jax.ShapeDtypeStruct(shape, dtype)
    return lambda x: pl.pallas_call(body, out_shape=out)(x)


def test_a_sound_kernel(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    lines: list[str] = []
    check = tpu.check_kernel(matmul, (X, X), np.dot, ("v5e-1", "v6e-1", "v7x-2"), progress=lines.append)
    assert check.passed and check.comparison is not None and check.comparison.error <= 1e-5
    assert [grid.grid for grid in check.grids] == [(2, 2)]
    # Blocks of 128 x 256 and of 256 x 128 of float32, and of the output, some of them twice.
    for chip in check:
        assert 128 * 256 * 4 * 2 + 128 * 128 * 4 <= chip.vmem_bytes < 2**20
        assert chip.interval_s[0] < chip.time_s < chip.interval_s[1] and not chip.is_floor
    assert lines[0] == "matmul in TPU interpret mode, grid 2x2"
    assert sorted(lines[1:]) == ["matmul for v5e-1", "matmul for v6e-1", "matmul for v7x-2"]
    assert repr(check) == "<KernelCheck of matmul: passed; check.show() prints it>"
    check.show()
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == "matmul, float32[256,256], float32[256,256]"
    assert "results: those of the reference. The largest error is " in shown
    record = json.loads(check.to_json(tmp_path / "a.json").read_text())
    assert record["passed"] and [chip["target"] for chip in record["chips"]] == ["v5e-1", "v6e-1", "v7x-2"]
    with pytest.raises(SettingError) as caught:
        check["v2-8"]
    assert str(caught.value) == "no system is named 'v2-8'; the kernel was compiled for v5e-1, v6e-1, v7x-2"


def test_blocks_that_are_too_large_for_one_chip(capsys: pytest.CaptureFixture[str]):
    large = jax.ShapeDtypeStruct((4096, 4096), "float32")
    check = tpu.check_kernel(lambda x, y: matmul(x, y, 256), (large, large), None, name="large")
    assert not check.passed and not check["v6e-1"].reason
    refused = check["v5e-1"]
    assert refused.reason.startswith(
        "Scoped allocation with size 16.50M and limit 16.00M exceeded scoped vmem limit by 512.0K, of the operation "
        "'pallas_call', at "
    )
    assert refused.advice == (
        "Take smaller blocks: each block of an input or output is held twice, for the copy of the next one. Or raise "
        "the limit: compiler_params=pltpu.CompilerParams(vmem_limit_bytes=64 * 2**20)"
    )
    assert "CompileTimeScopedVmemOom" in refused.said and refused.time_s is None
    check.show()
    assert "results: not compared, because there is no reference." in capsys.readouterr().out
    assert repr(check) == "<KernelCheck of large: it does not compile for v5e-1; check.show() prints it>"


@pytest.mark.parametrize(
    ("kernel", "spec", "reason", "advice"),
    [
        (
            lambda x: matmul(x, x, 100),
            jax.ShapeDtypeStruct((500, 500), "float32"),
            "The Pallas TPU lowering currently requires that the last two dimensions of your block shape are divisible "
            "by 8 and 128",
            "Take blocks whose last two sizes are multiples of 8 and 128, or those of the whole array; pad the array",
        ),
        (
            elementwise(lambda x, out: out.__setitem__(..., jnp.sort(x[...], axis=0))),
            jax.ShapeDtypeStruct((8, 128), "float32"),
            "Unimplemented primitive in Pallas TPU lowering for tc: sort, of the operation 'sort', at ",
            "Compute it with other operations, or outside of the kernel",
        ),
        (
            elementwise(lambda x, out: out.__setitem__(..., x[...] * x[...]), "float16"),
            jax.ShapeDtypeStruct((8, 128), "float16"),
            "Mosaic failed to compile TPU kernel: Invalid vector type for load, of the operation ",
            "Cast the array to float32 or bfloat16 outside of the kernel",
        ),
    ],
)
def test_what_the_compiler_refuses(kernel: Any, spec: Any, reason: str, advice: str):
    check = tpu.check_kernel(kernel, (spec,), None, "v5e-1")
    assert check["v5e-1"].reason.startswith(reason) and check["v5e-1"].advice == advice


def unwritten(x: Any, y: Any, out: Any) -> None:
    pl.when(pl.program_id(0) > 0)(lambda: product(x, y, out))


def test_a_block_that_is_not_written(capsys: pytest.CaptureFixture[str]):
    x = np.ones((256, 256), "float32")
    check = tpu.check_kernel(lambda x, y: matmul(x, y, body=unwritten), (x, x), np.dot, "v5e-1", name="lazy")
    assert check.comparison is not None and check.comparison.fault == (
        "output 0 is NaN at (0, 0), where the reference has 256; 50.0% of it is NaN. The kernel reads memory that it "
        "did not write, leaves a block unwritten, or divides 0 by 0"
    )
    assert repr(check) == "<KernelCheck of lazy: its results are wrong; check.show() prints it>"
    check.show()
    assert "results: wrong: output 0 is NaN at (0, 0)" in capsys.readouterr().out


def test_a_wrong_value_and_a_wrong_shape():
    x = np.arange(8 * 128, dtype="float32").reshape(8, 128)
    double = elementwise(lambda x, out: out.__setitem__(..., 2 * x[...]))
    comparison = tpu.check_kernel(double, (x,), lambda x: 2 * x + (x > 1000), "v5e-1").comparison
    assert comparison is not None and comparison.fault == (
        "output 0 is 2002 at (7, 105), and the reference 2003; 2.2% of it is wrong. The largest error is 0.00049 of "
        "the largest value, and the tolerance 0.0001"
    )
    assert not tpu.check_kernel(double, (x,), lambda x: 2 * x + (x > 1000), "v5e-1", tolerance=1e-3).comparison.fault
    comparison = tpu.check_kernel(double, (x,), lambda x: 2 * x[:4], "v5e-1").comparison
    assert comparison.fault == "output 0 has the shape (8, 128), and that of the reference (4, 128)"
    comparison = tpu.check_kernel(double, (x,), lambda x: (x, x), "v5e-1").comparison
    assert comparison.fault == "the kernel returns another tree of outputs than the reference: 1 arrays, not 2"


def test_an_access_out_of_bounds():
    def body(x: Any, out: Any) -> None:
        out[...] = x[pl.ds(pl.program_id(0) * 4, 8), :]

    def kernel(x: Any) -> Any:
        return pl.pallas_call(body, grid=(2,), out_shape=jax.ShapeDtypeStruct((8, 128), "float32"))(x)

    comparison = tpu.check_kernel(kernel, (np.ones((8, 128), "float32"),), lambda x: x, "v5e-1").comparison
    assert comparison.fault.startswith("the interpreter stopped: IndexError: Out-of-bounds read of ")
    # The interpreter can be used again.
    assert tpu.check_kernel(matmul, (X, X), np.dot, "v5e-1").passed


def test_a_race():
    def body(x: Any, out: Any, scratch: Any, semaphore: Any) -> None:
        scratch[...] = x[...]
        copy = pltpu.make_async_copy(scratch, out, semaphore)
        copy.start()
        scratch[...] = x[...]  # The same values, but the copy may read meanwhile.
        copy.wait()

    def kernel(x: Any) -> Any:
        return pl.pallas_call(
            body,
            out_specs=pl.BlockSpec(memory_space=pl.ANY),
            out_shape=jax.ShapeDtypeStruct((8, 128), "float32"),
            scratch_shapes=[pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA],
        )(x)

    comparison = tpu.check_kernel(kernel, (np.ones((8, 128), "float32"),), lambda x: x, "v5e-1").comparison
    assert comparison is not None and comparison.fault == (
        "two accesses to the same memory have no order: a copy and a computation, or two steps of the grid"
    )


def test_bad_arguments():
    with pytest.raises(ProgramError) as caught:
        tpu.check_kernel(jnp.dot, (X, X), None)
    assert str(caught.value) == (
        "'dot' calls no Pallas kernel: give the function that calls pl.pallas_call(body, ...)(x); for another function "
        "use anytpu.plan"
    )
    with pytest.raises(SettingError) as caught:
        tpu.check_kernel(matmul, (X, 128), None)
    assert str(caught.value) == (
        "input 1 of 'matmul' is a int: give arrays or jax.ShapeDtypeStruct, and bind other arguments with "
        "functools.partial"
    )
    with pytest.raises(SettingError) as caught:
        tpu.check_kernel(matmul, (X, X), None, tolerance=-1.0)
    assert str(caught.value) == "tolerance must be a share of the largest value, 0 or more, or None, not -1.0"
    captured = jnp.ones((8, 128))
    with pytest.raises(ProgramError) as caught:
        tpu.check_kernel(
            elementwise(lambda x, out: out.__setitem__(..., x[...] + captured)), (captured,), None, name="sum"
        )
    assert str(caught.value).startswith("the kernel 'sum' cannot be traced: The kernel function in the pallas_call ")
    assert str(caught.value).endswith(". Pass the array to pallas_call as an input")
