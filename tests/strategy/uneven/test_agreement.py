"""Sums over the replicas in steps on batches that do not fill them, compared with the replicas' real rows alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anytpu as tpu
from anytpu.errors import ReplicaError
from uneven_steps import LINKS

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
def test_random_steps_are_right(names, last, cores, count, seed):
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
    check(step, count, cores, seed)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda x: jnp.sum(x) * jax.lax.psum(1 / len(x), AXIS), lambda x: x.sum() * (3 / 8 + 1 / 6)),
        (lambda x: jnp.sum(x) * jax.lax.psum(len(x), AXIS) ** 2, lambda x: x.sum() * 900),
        (lambda x: jnp.sum(jnp.ones(jax.lax.psum(len(x), AXIS))), lambda x: 30.0),
        (lambda x: jnp.sum(x) * (2 if jax.lax.psum(len(x), AXIS) > 29 else 1), lambda x: x.sum() * 2),
        (lambda x: jnp.sum(x) * jax.lax.psum(jax.lax.psum(len(x), AXIS) - len(x), AXIS), lambda x: x.sum() * 90),
        (lambda x: x.sum() + sum(range(jax.lax.psum(1, AXIS))), lambda x: x.sum() + 6),
    ],
)
def test_python_computes_with_such_a_sum(step, expected):
    rows = np.arange(30.0, dtype="float32")
    strategy = tpu.connect("virtual", cores=4)
    values = strategy.run(step, args=(next(iter(strategy.distribute_dataset([rows]))),)).values
    np.testing.assert_allclose(values, [expected(rows[8 * i : 8 * i + 8]) for i in range(4)], rtol=1e-6)


def test_numbers_without_an_end_are_refused():
    calls = iter(range(10**6))

    def step(x):
        return x.sum() + jax.lax.psum(len(x) + next(calls), AXIS)

    strategy = tpu.connect("virtual", cores=4)
    with pytest.raises(ReplicaError) as error:
        strategy.run(step, args=(next(iter(strategy.distribute_dataset([np.arange(30.0, dtype="float32")]))),))
    assert str(error.value) == (
        "step was given a batch that does not fill all replicas, and the Python numbers that its replicas sum depend "
        'on these sums without end. Sum arrays: jax.lax.psum(jnp.asarray(number), "replica")'
    )
