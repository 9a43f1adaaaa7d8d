"""What a prediction takes from the compiler's module."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest

import anytpu as tpu


@pytest.mark.parametrize(("dtype", "into", "peak"), [("bfloat16", "float32", 197e12), ("int8", "int32", 393e12)])
def test_the_peak_is_that_of_the_type_of_the_products(dtype, into, peak):
    def step(state, batch):
        return state, jnp.dot(batch, state, preferred_element_type=into)

    specs = (jax.ShapeDtypeStruct((1024, 1024), dtype), jax.ShapeDtypeStruct((1024, 1024), dtype))
    found = tpu.plan(step, tpu="v5e-1", input_specs=specs, mode="train")["v5e-1"]
    assert found.peak_flops_per_s == peak
    assert 0 < found.mfu < 1


def test_the_products_of_a_loop_count():
    def step(state, batch):
        wide = jax.lax.fori_loop(0, 4, lambda _, x: jnp.tanh(x @ state), batch)
        return state, wide.sum()

    specs = (jax.ShapeDtypeStruct((512, 512), "bfloat16"), jax.ShapeDtypeStruct((512, 512), "bfloat16"))
    assert tpu.plan(step, tpu="v5e-1", input_specs=specs)["v5e-1"].flops == pytest.approx(4 * 2 * 512**3)


def test_what_rematerialisation_repeats_is_not_counted():
    def block(x, w):
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    def step(remat, state, batch):
        def loss(w):
            body = jax.checkpoint(block) if remat else block
            x, _ = jax.lax.scan(lambda x, one: (body(x, one), None), batch, w)
            return x.astype(jnp.float32).mean()

        return state - jax.grad(loss)(state), {}

    specs = (jax.ShapeDtypeStruct((4, 256, 256), "bfloat16"), jax.ShapeDtypeStruct((512, 256), "bfloat16"))
    plain, again = (
        tpu.plan(functools.partial(step, remat), tpu="v5e-1", input_specs=specs)["v5e-1"] for remat in (False, True)
    )
    assert again.flops == plain.flops == 4 * 2 * 3 * 2 * 512 * 256**2
    assert sum(op.flops for op in again.time.ops) > again.flops


def test_what_only_prints_is_left_out_with_a_note():
    def step(state, batch):
        jax.debug.print("mean {}", batch.mean())
        return state, batch @ state

    specs = (jax.ShapeDtypeStruct((256, 256), "float32"), jax.ShapeDtypeStruct((256, 256), "float32"))
    line = step.__code__.co_firstlineno + 1
    found = tpu.plan(step, tpu="v5e-1", input_specs=specs)["v5e-1"]
    assert found.notes == (
        f"Not in the plan: jax.debug.print at {__file__}:{line}:8 ({step.__qualname__}). No number depends on it; on a "
        "TPU each call waits for the host.",
        "256 examples a step: axis 0 of the batch, as no sharding or batch_axis says another.",
    )
    assert found.step_s > 0
