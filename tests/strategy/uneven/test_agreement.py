"""Sums over the replicas in steps on padded batches, compared with the replicas' real rows alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from padded_steps import LINKS

import anytpu as tpu
from anytpu.errors import ReplicaError

pytestmark = pytest.mark.usefixtures("quick_compilation")

AXIS = "replica"


class OfAnytpu:
    """The collectives of a step that anytpu runs."""

    def psum(self, value: Any) -> Any:
        return jax.lax.psum(value, AXIS)

    def pmean(self, value: Any) -> Any:
        return jax.lax.pmean(value, AXIS)

    def all_reduce(self, how: str, value: Any) -> Any:
        context = tpu.get_replica_context()
        assert context is not None
        return context.all_reduce(how, value)


class OfRealRows:
    """The collectives of a replica by itself, which know what the other replicas gave in the pass before."""

    def __init__(self, others: list[list[Any]]) -> None:
        self.given: list[Any] = []
        self._others = others

    def _joined(self, value: Any, join: Callable) -> Any:
        self.given.append(np.asarray(value, "float64"))
        position = len(self.given) - 1
        # In the first pass any value does but 0, by which a step may divide.
        return join([given[position] for given in self._others]) if self._others else value + 1

    def psum(self, value: Any) -> Any:
        return self._joined(value, sum)

    def pmean(self, value: Any) -> Any:
        return self._joined(value, lambda each: sum(each) / len(each))

    def all_reduce(self, how: str, value: Any) -> Any:
        return self.psum(value) if how == "SUM" else self.pmean(value)


def check(step: Callable[..., Any], count: int, cores: int, seed: int = 0) -> None:
    """Compare a step `(x, y, w, over) -> tree` on every replica with the same step on the replicas' real rows."""
    random = np.random.default_rng(seed)
    x, y, w = (random.normal(size=shape).astype("float32") for shape in ((count, 3), (count,), (3,)))
    strategy = tpu.connect("virtual", cores=cores)
    batch = next(iter(strategy.distribute_dataset([(x, y)])))
    outputs = strategy.run(lambda x, y, w: step(x, y, w, OfAnytpu()), args=(*batch, w))
    leaves = jax.tree.leaves(outputs, is_leaf=lambda leaf: isinstance(leaf, tpu.PerReplica))
    each = -(-count // cores)
    parts = [slice(each * replica, each * (replica + 1)) for replica in range(cores)]
    others: list[list[Any]] = []
    expected: list[list[Any]] = []
    for _ in range(3):
        overs = [OfRealRows(others) for _ in parts]
        results = [
            step(jnp.asarray(x[part]), jnp.asarray(y[part]), jnp.asarray(w), over)
            for part, over in zip(parts, overs, strict=True)
        ]
        expected, others = [jax.tree.leaves(result) for result in results], [over.given for over in overs]
    for replica, real in enumerate(expected):
        for leaf, alone in zip(leaves, real, strict=True):
            # Float32: sums in another order.
            np.testing.assert_allclose(leaf.values[replica], alone, rtol=1e-3, atol=1e-4)


STEPS: dict[str, Callable[..., Any]] = {
    "mean": lambda x, y, w, over: over.psum(jnp.sum(x)) / over.psum(len(x)),
    "mean_of_columns": lambda x, y, w, over: over.psum(jnp.sum(x, axis=0)) / over.psum(x.shape[0]),
    "mean_of_all": lambda x, y, w, over: over.psum(jnp.sum(x)) / over.psum(x.size),
    "float": lambda x, y, w, over: jnp.sum(x) / over.psum(float(len(y))),
    "numpy": lambda x, y, w, over: jnp.sum(x) / over.psum(np.float32(len(y))),
    "array": lambda x, y, w, over: jnp.sum(x) / over.psum(jnp.asarray(len(y), jnp.float32)),
    "reciprocal": lambda x, y, w, over: jnp.sum(x) * (1 / over.psum(len(x))),
    "tree": lambda x, y, w, over: over.psum(2 * len(x)) + jnp.sum(y),
    "rows": lambda x, y, w, over: over.psum(len(x)),
    "mean_rows": lambda x, y, w, over: jnp.sum(y) / over.pmean(len(x)),
    "own_and_all": lambda x, y, w, over: jnp.sum(y) * len(x) / over.psum(len(x)),
    "share": lambda x, y, w, over: over.psum(jnp.float32(len(x)) * jnp.sum(y)) / (over.psum(1) * over.psum(len(x))),
    "jit": lambda x, y, w, over: jax.jit(lambda x: jnp.sum(x) / over.psum(len(x)))(x),
    "gradient": lambda x, y, w, over: jax.grad(lambda w: jnp.sum(x @ w) / over.psum(len(x)))(w),
    "all_reduce": lambda x, y, w, over: over.all_reduce("SUM", x.shape[0]),
    "all_reduce_mean": lambda x, y, w, over: over.all_reduce("MEAN", x.shape[0]),
    "all_reduce_values": lambda x, y, w, over: over.all_reduce("MEAN", jnp.sum(x)),
    "replicas": lambda x, y, w, over: sum(jnp.sum(y) * i for i in range(3)) / over.psum(1),
    "variance": lambda x, y, w, over: (
        over.psum(jnp.sum(jnp.square(x - over.psum(jnp.sum(x)) / over.psum(x.size)))) / over.psum(x.size)
    ),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("count", [10, 30, 5])
def test_a_sum_over_the_replicas_takes_real_rows(name, count):
    check(STEPS[name], count, cores=4)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    names=st.lists(st.sampled_from(sorted(LINKS)), max_size=3),
    last=st.sampled_from(["mean", "mean_of_all", "mean_rows", "own_and_all", "all_reduce_mean", "variance"]),
    cores=st.sampled_from([2, 3]),
    count=st.integers(4, 13),
    seed=st.integers(0, 99),
)
def test_random_steps_are_right_or_refused(names, last, cores, count, seed):
    def step(x: Any, y: Any, w: Any, over: Any) -> Any:
        v = x * w
        for name in names:
            v = LINKS[name](v, y, w)
        return STEPS[last](v, v.reshape(-1), w, over)

    count += not count % cores
    sizes = {-(-count // cores), count - -(-count // cores) * (cores - 1)}
    for rows in sizes:
        if rows <= 0:
            return
        try:
            step(jnp.ones((rows, 3)), jnp.ones(rows), jnp.ones(3), OfRealRows([]))
        except (TypeError, ValueError, IndexError):
            return  # It runs on no batch: shapes do not fit.
    try:
        check(step, count, cores, seed)
    except ReplicaError as error:
        assert "does not fill all replicas" in str(error)


@pytest.mark.parametrize(
    ("step", "operation"),
    [
        (lambda x: jnp.sum(x) * jax.lax.psum(1 / len(x), AXIS), "mul"),
        (lambda x: jnp.sum(x) * jax.lax.psum(len(x), AXIS) ** 2, "mul"),
        (lambda x: jnp.sum(jnp.ones(jax.lax.psum(len(x), AXIS))), "broadcast_in_dim"),
        (lambda x: jnp.sum(x) * (2 if jax.lax.psum(len(x), AXIS) > 100 else 1), "mul"),
    ],
)
def test_python_that_computes_with_such_a_sum_is_refused(step, operation):
    strategy = tpu.connect("virtual", cores=4)
    batch = next(iter(strategy.distribute_dataset([np.arange(30.0, dtype="float32")])))
    with pytest.raises(ReplicaError) as error:
        strategy.run(step, args=(batch,))
    line = step.__code__.co_firstlineno
    assert str(error.value) == (
        "<lambda> was given a batch that does not fill all replicas, so its last rows are pads, and "
        f"{operation} (line {line} of test_counts.py) depends on a number that Python has computed from a sum of "
        "numbers of rows over the replicas: sum an array, as in "
        'jax.lax.psum(jnp.asarray(len(x)), "replica"), and compute with that; or leave such a batch out, with '
        "batch(rows, drop_remainder=True)"
    )


def test_a_sum_in_a_step_for_one_number_of_rows_is_refused():
    def step(x):
        real = jnp.where(tpu.row_mask(x), x, 0).reshape(3)
        return jnp.sum(real) / jax.lax.psum(len(x), AXIS)

    strategy = tpu.connect("virtual", cores=4)
    batch = next(iter(strategy.distribute_dataset([np.arange(10.0, dtype="float32")])))
    with pytest.raises(ReplicaError) as error:
        strategy.run(step, args=(batch,))
    assert str(error.value) == (
        "step was given a batch that does not fill all replicas, so its last rows are pads, and div (line "
        f"{step.__code__.co_firstlineno + 2} of test_counts.py) takes a Python number that JAX has summed over "
        "the replicas. The step cannot be traced for 7 rows (TypeError: cannot reshape array of shape (7,) (size 7) "
        "into shape 3 (size 3)), so it may be a number of rows: sum an array, as in "
        'jax.lax.psum(jnp.asarray(len(x)), "replica"), and compute with that; or leave such a batch out, with '
        "batch(rows, drop_remainder=True)"
    )
