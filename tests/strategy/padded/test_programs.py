"""Steps on batches that do not fill the replicas: what the real rows alone give, or an error."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anytpu as tpu
from anytpu.errors import ReplicaError
from padded_steps import LINKS, REFUSED, STEPS, chained


def rows_of(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x, y, w = (random.normal(size=shape).astype("float32") for shape in ((count, 3), (count,), (3,)))
    return x, y, w


def check(step: Any, count: int, cores: int, seed: int = 0) -> None:
    """Compare a step on every replica with the same step on the replica's real rows alone."""
    x, y, w = rows_of(count, seed)
    strategy = tpu.connect("virtual", cores=cores)
    batch = next(iter(strategy.distribute_dataset([(x, y)])))
    outputs = strategy.run(step, args=(*batch, w))
    leaves = jax.tree.leaves(outputs, is_leaf=lambda leaf: isinstance(leaf, tpu.PerReplica))
    each = -(-count // cores)
    for replica in range(cores):
        real = slice(each * replica, each * (replica + 1))
        if not len(x[real]):
            continue
        expected = jax.tree.leaves(step(jnp.asarray(x[real]), jnp.asarray(y[real]), jnp.asarray(w)))
        for leaf, one in zip(leaves, expected, strict=True):
            assert leaf.values[replica].shape == one.shape
            # Float32: sums in another order.
            np.testing.assert_allclose(leaf.values[replica], one, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_gives_what_real_rows_alone_give(name):
    check(STEPS[name], count=10, cores=3)


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_no_mask_mends_is_refused(name):
    with pytest.raises(ReplicaError, match="does not fill all replicas"):
        check(REFUSED[name], count=10, cores=3)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(STEPS)),
    cores=st.sampled_from([2, 3, 8]),
    count=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_any_number_of_rows(name, cores, count, seed):
    check(STEPS[name], count if count % cores else count + 1, cores, seed)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    names=st.lists(st.sampled_from(sorted(LINKS)), min_size=1, max_size=4),
    cores=st.sampled_from([2, 3]),
    count=st.integers(3, 13),
    seed=st.integers(0, 99),
)
def test_random_steps_are_right_or_refused(names, cores, count, seed):
    step = chained(names)
    count += not count % cores
    for real in {-(-count // cores), count - -(-count // cores) * (cores - 1)}:
        if real > 0:
            try:
                step(*map(jnp.asarray, rows_of(real, seed)))
            except (TypeError, ValueError, IndexError):
                return  # It runs on no batch: shapes do not fit.
    try:
        check(step, count, cores, seed)
    except ReplicaError as error:
        assert "does not fill all replicas" in str(error)
