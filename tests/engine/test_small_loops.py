"""Loops whose turns are small become one kernel on the CPU; the numbers stay what they are, and XLA never aborts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.engine import trial
from anytpu.engine.backend import Loop
from anytpu.engine.kernels import fast_kernels
from anytpu.engine.loop import feed_specs, make_loop
from anytpu.engine.small_loops import skip_next_loop
from anytpu.engine.virtual import VirtualBackend
from anytpu.program import ROWS, Program, spec_of
from anytpu.system.topologies import row_of_cores
from engine.kernel_switch import compiled

MARK = 'xla_cpu_small_call = "true"'
FUZZ = Path(__file__).parents[2] / "scripts" / "fuzz_small_loops.py"

pytestmark = pytest.mark.skipif(not trial.has_passed(), reason="no loop is marked with a jaxlib that failed the trial")


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def network(w: Any, v: Any, x: Any, y: Any) -> Any:
    """Train on one example after the other."""

    def loss(params: Any, i: Any) -> Any:
        w, v = params
        return -jax.nn.log_softmax(jax.nn.sigmoid(x[i] @ w) @ v.T) @ y[i]

    def step(i: Any, params: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, i))

    return jax.lax.fori_loop(0, len(x), step, (w, v))


def over_lanes(*args: Any) -> Any:
    return jax.vmap(network, in_axes=(None, None, 0, 0), axis_size=1)(args[0], args[1], args[2][None], args[3][None])


def cumulated(x: Any) -> Any:
    return jax.lax.scan(lambda total, row: (total + row, jnp.where(total > 0, total, -row)), jnp.zeros(4), x)


def halved(x: Any) -> Any:
    return jax.lax.while_loop(lambda pair: pair[0].sum() > 1, lambda pair: (pair[0] / 2, pair[1] + 1), (x, 0))


NETWORK = (floats(5, 32), floats(3, 32), floats(20, 5), np.eye(3, dtype="float32")[np.arange(20) % 3])
SMALL = {
    "network": (network, NETWORK),
    "scan": (cumulated, (floats(9, 4),)),
    "while": (halved, (np.abs(floats(6)) * 100,)),
}


def turned(body: Any, x: np.ndarray) -> Any:
    return (lambda x: jax.lax.fori_loop(0, 3, lambda _, x: body(x), x), (x,))


TABLE = floats(9, 4)
LARGE = {
    "large arrays": turned(lambda x: x + 1.0, np.zeros((64, 64), "float32")),
    "many operations": turned(lambda x: ((x * x + 2) * x + 3) * x * x * x + x * 2 + 1, np.zeros(2048, "float32")),
    "a large table": (lambda t, x: jax.lax.fori_loop(0, 3, lambda i, x: x + t[i], x), (floats(9000, 4), floats(4))),
    "products of matrices": turned(lambda x: x @ x, floats(8, 8)),
    "a long sum": (lambda y, x: jax.lax.fori_loop(0, 3, lambda _, x: x + y.sum(), x), (floats(64, 33), floats(4))),
    "a product with a large matrix": turned(lambda x: jnp.ones((46, 46)) @ x, floats(46)),
    "a product over several lanes": turned(lambda x: jnp.einsum("bi,bij->bj", x, jnp.ones((2, 3, 3))), floats(2, 3)),
    "three long axes": turned(lambda x: x * 2, floats(2, 3, 4)),
    "nothing at all": turned(lambda x: x * 2, floats(0, 3)),
    "half precision": turned(lambda x: x * 2, floats(4).astype("float16")),
    "complex numbers": turned(lambda x: x * 2, floats(4).astype("complex64")),
    "rows of lanes": (over_lanes, NETWORK),
    "gathering": turned(lambda x: x + jnp.asarray(TABLE)[jnp.argsort(x) % 9].sum(), floats(4)),
    "positions": turned(lambda x: x + jnp.argmax(x), floats(4)),
    "joining": turned(lambda x: jnp.concatenate([x[2:], x[:2]]), floats(4)),
    "sorting": turned(jnp.sort, floats(8)),
    "a call of the host": turned(
        lambda x: jax.pure_callback(lambda x: np.asarray(x), jax.ShapeDtypeStruct((8,), "float32"), x), floats(8)
    ),
}


def lowered(function: Any, args: Any) -> str:
    with fast_kernels():
        return jax.jit(lambda *args: function(*args)).lower(*args).as_text()


@pytest.mark.parametrize("name", SMALL)
def test_a_small_loop_is_one_kernel_with_the_same_numbers(name):
    function, args = SMALL[name]
    assert MARK in lowered(function, args)
    assert MARK not in jax.jit(lambda *args: function(*args)).lower(*args).as_text()
    plain, fast = (compiled(function, *args, fast=fast) for fast in (False, True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6), fast, plain)


@pytest.mark.parametrize("name", LARGE)
def test_any_other_loop_stays(name):
    function, args = LARGE[name]
    assert MARK not in lowered(function, args)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_numbers_of_every_kind(dtype):
    def turn(_: Any, carry: Any) -> Any:
        vector, matrix = carry
        product = (vector * matrix[1]).sum(axis=0).astype(dtype)
        return jnp.where(jnp.abs(product * 1) < 3, product, vector), matrix

    def looped(vector: Any, matrix: Any) -> Any:
        return jax.lax.fori_loop(0, 4, turn, (vector, matrix))[0]

    args = jnp.asarray(floats(6) * 2).astype(dtype), jnp.asarray(floats(6, 6)).astype(dtype)
    assert MARK in lowered(looped, args)
    plain, fast = (np.asarray(compiled(looped, *args, fast=fast)) for fast in (False, True))
    assert plain.dtype == fast.dtype
    np.testing.assert_allclose(fast.astype("float32"), plain.astype("float32"), rtol=2e-6, atol=2e-6)


def test_loops_in_loops():
    def inner(x: Any) -> Any:
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x)

    def outer(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, lambda _, x: inner(x * 7), x)

    assert MARK in lowered(outer, (np.ones(5, "float32"),))
    plain, fast = (compiled(outer, np.ones(5, "float32"), fast=fast) for fast in (False, True))
    np.testing.assert_allclose(fast, plain, rtol=2e-6)


def test_gradients_go_through_a_small_loop():
    def total(x: Any) -> Any:
        return jax.lax.fori_loop(0, 5, lambda _, x: jnp.sin(x) * 1.5, x).sum()

    plain, fast = (compiled(jax.grad(total), floats(7), fast=fast) for fast in (False, True))
    np.testing.assert_allclose(fast, plain, rtol=2e-6, atol=2e-6)


def test_the_next_loop_can_be_left_but_not_those_inside():
    inner, args = SMALL["while"]
    with skip_next_loop():
        assert MARK not in lowered(inner, args)
        assert MARK in lowered(inner, args)
    with skip_next_loop():
        assert MARK in lowered(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: inner(jnp.sort(x))[0], x), args)


def test_the_engines_own_loop_stays():
    def step(state: Any, batch: Any) -> Any:
        return {"sum": state["sum"] + batch}, {"loss": batch.sum()}

    state, batch = {"sum": np.zeros(400, "float32")}, np.ones(400, "float32")
    program, loop = Program("sum/train", step, spec_of(state), spec_of(batch), ROWS), Loop(4, "batches")
    one = jax.ShapeDtypeStruct((), "int32")
    args = program.state, feed_specs(program.batch, loop), one, one
    assert MARK in lowered(make_loop(step, program.state, program.batch, loop), args)
    executable: Any = VirtualBackend(row_of_cores(2).cores).compile(program, loop)
    assert "inlineable" not in executable._compiled.as_text()


def test_random_loops_and_those_that_made_xla_abort():
    result = subprocess.run([sys.executable, FUZZ, "--cases=-2:32"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.endswith("11 same, 23 unmarked\n")
