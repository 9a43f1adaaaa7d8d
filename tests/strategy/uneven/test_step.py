"""Steps on batches that do not fill the replicas: what the real rows alone give, or an error."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anytpu as tpu  # isort: skip
import keras

from anytpu.errors import ReplicaError
from uneven_steps import LINKS, STEPS, chained


def rows_of(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    x, y, w = (random.normal(size=shape).astype("float32") for shape in ((count, 3), (count,), (3,)))
    return x, y, w


def check(step: Any, count: int, cores: int, seed: int = 0) -> None:
    """Compare a step on every replica with the same step on the replica's real rows alone."""
    x, y, w = rows_of(count, seed)
    strategy = tpu.connect("virtual", cores=cores)
    batch = next(iter(strategy.distribute_dataset([(x, y)])))
    try:
        outputs = strategy.run(step, args=(*batch, w))
    except ReplicaError as error:
        # A step that fails on no rows is refused.
        assert "it fails on a replica with 0 rows" in str(error)
        with pytest.raises((IndexError, ValueError, ZeroDivisionError)):
            step(jnp.asarray(x[:0]), jnp.asarray(y[:0]), jnp.asarray(w))
        return
    leaves = jax.tree.leaves(outputs, is_leaf=lambda leaf: isinstance(leaf, tpu.PerReplica))
    each = -(-count // cores)
    for replica in range(cores):
        real = slice(each * replica, each * (replica + 1))
        if not len(x[real]):
            continue
        expected = jax.tree.leaves(step(jnp.asarray(x[real]), jnp.asarray(y[real]), jnp.asarray(w)))
        for leaf, alone in zip(leaves, expected, strict=True):
            assert leaf.values[replica].shape == alone.shape
            # Float32: sums in another order.
            np.testing.assert_allclose(leaf.values[replica], alone, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", STEPS)
def test_a_step_gives_what_real_rows_alone_give(name):
    check(STEPS[name], count=10, cores=3)


def test_an_lstm_treats_each_row_by_itself():
    layer = keras.layers.LSTM(4)
    layer.build((None, 3, 1))
    weights = [variable.value for variable in layer.trainable_variables]
    others = [variable.value for variable in layer.non_trainable_variables]

    def step(x: Any, y: Any, w: Any) -> Any:
        return ((layer.stateless_call(weights, others, (x * w)[:, :, None])[0].sum(-1) - y) ** 2).mean()

    check(step, count=10, cores=3)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    name=st.sampled_from(sorted(STEPS)),
    cores=st.sampled_from([2, 3, 8]),
    count=st.integers(1, 30),
    seed=st.integers(0, 99),
)
def test_any_number_of_rows(name, cores, count, seed):
    check(STEPS[name], count if count % cores else count + 1, cores, seed)


RANDOM_STEPS = {
    "names": st.lists(st.sampled_from(sorted(LINKS)), min_size=1, max_size=4),
    "cores": st.sampled_from([2, 3]),
    "count": st.integers(3, 13),
    "seed": st.integers(0, 99),
}


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(**RANDOM_STEPS)
def test_random_steps_are_right(names, cores, count, seed):
    check_random(names, cores, count, seed)


@pytest.mark.battery
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(**RANDOM_STEPS)
def test_more_random_steps_are_right(names, cores, count, seed):
    check_random(names, cores, count, seed)


def check_random(names: list[str], cores: int, count: int, seed: int) -> None:
    step = chained(names)
    count += not count % cores
    each = -(-count // cores)
    for real in {each, max(0, count - each * (cores - 1)), 0 if each * (cores - 1) > count else each}:
        try:
            step(*map(jnp.asarray, rows_of(real, seed)))
        except (TypeError, ValueError, IndexError, ZeroDivisionError):
            return  # It runs on no batch, or on none with so few rows: shapes do not fit.
    check(step, count, cores, seed)


ROWS = np.arange(10.0, dtype="float32").reshape(5, 2)


def run(step: Any, rows: Any = ROWS, cores: int = 2) -> list[Any]:
    """Return a step's value on each replica."""
    strategy = tpu.connect("virtual", cores=cores)
    batch = next(iter(strategy.distribute_dataset([rows])))
    return [np.asarray(value).tolist() for value in strategy.run(step, args=(batch,)).values]


def test_python_code_on_the_number_of_rows_sees_each_replicas_own():
    assert run(lambda x: jnp.arange(len(x))) == [[0, 1, 2], [0, 1]]
    assert run(lambda x: jnp.sum(x) if len(x) > 2 else -jnp.sum(x)) == [15.0, -30.0]
    assert run(lambda x: jnp.sum(x) / min(len(x), 2)) == [7.5, 15.0]
    assert run(lambda x: 0 if len(x) < 3 else jnp.sum(x)) == [15.0, 0.0]
    assert run(lambda x: len(x) // 2) == [1, 1]


def test_results_have_the_shapes_of_each_replica():
    assert run(lambda x: x.T) == [[[0, 2, 4], [1, 3, 5]], [[6, 8], [7, 9]]]
    assert run(lambda x: (x @ x.T).shape[0] * jnp.ones((len(x), len(x)))) == [[[3.0] * 3] * 3, [[2.0] * 2] * 2]
    assert run(lambda x: jnp.concatenate([x[:, 0], x[:, 1]])) == [[0, 2, 4, 1, 3, 5], [6, 8, 7, 9]]


def test_a_result_with_other_shapes_is_no_argument():
    strategy = tpu.connect("virtual", cores=2)
    turned = strategy.run(lambda x: x.T, args=(next(iter(strategy.distribute_dataset([ROWS]))),))
    with pytest.raises(ReplicaError, match=r"have different shapes, \(2, 3\), \(2, 2\)"):
        strategy.run(lambda x: x, args=(turned,))


def test_replicas_without_rows_add_nothing():
    weight = jnp.array([1.0, 2.0])
    losses = run(lambda x: jax.lax.psum(jnp.sum((x @ weight) ** 2) / 64, "replica"), ROWS[1:2], cores=8)
    assert losses == [1.0] * 8
    assert run(lambda x: jax.lax.pmax(jnp.max(x), "replica"), ROWS[1:2], cores=4) == [3.0] * 4
    gather = lambda x: tpu.get_replica_context().all_gather(x, 0)  # noqa: E731
    assert run(lambda x: (gather(x) - gather(2 * x)).sum() + gather(x[:, :1]).sum(), ROWS[:3], cores=4) == [-9.0] * 4
    gathered = run(lambda x: tpu.get_replica_context().all_gather(x, 0), ROWS[1:2], cores=4)
    assert gathered == [[[2.0, 3.0]]] * 4


def test_collectives_in_loops_and_branches():
    def step(x):
        total = lambda value: jax.lax.psum(value, "replica")  # noqa: E731
        scanned, steps = jax.lax.scan(lambda c, i: (c + total(x.sum()) * i, c), 0.0, jnp.arange(3.0))
        looped = jax.lax.while_loop(lambda c: c[0] < 4, lambda c: (c[0] + 1, c[1] + total(x.min())), (0, 0.0))[1]
        same = jax.lax.cond(total(x.sum()) > 0, lambda: total(x.max()), lambda: 0.0)
        own = jax.lax.cond(x.sum() > 20, lambda: total(x.max()), lambda: -1.0)
        counted = jax.lax.fori_loop(0, len(x), lambda i, c: c + jax.lax.axis_index("replica"), 0)
        mapped = jax.lax.map(lambda i: total(x[0, 0] + i), jnp.arange(2.0))
        return jnp.stack([scanned, steps[1], steps[2], looped, same, own, counted, *mapped])

    assert run(step) == [[135, 0, 45, 24, 14, -1, 0, 6, 8], [135, 0, 45, 24, 14, 14, 2, 6, 8]]


def test_gradients_of_losses_with_a_collective_in_them():
    def centred(w, x):
        mean = jax.lax.psum(jnp.sum(x @ w), "replica") / jax.lax.psum(len(x), "replica")
        return jnp.sum((x @ w - mean) ** 2)

    def alone(w):
        return jnp.sum((ROWS @ w - jnp.mean(ROWS @ w)) ** 2)

    weight = jnp.array([1.0, 2.0])
    slopes = run(lambda x: tpu.value_and_grad(centred, weight)(x)[1])
    np.testing.assert_allclose(slopes, [jax.grad(alone)(weight)] * 2, rtol=1e-6)


def refusal_of(step: Any, rows: Any = ROWS, cores: int = 2) -> str:
    """Return the error of a step."""
    with pytest.raises(ReplicaError) as error:
        run(step, rows, cores)
    return str(error.value)


BEGIN = "step was given a batch that does not fill all replicas, and "
END = (
    ". Let all replicas run the same collectives, on values of the same shapes, or leave such a batch out: "
    "batch(rows, drop_remainder=True)"
)


def test_replicas_that_run_different_collectives_are_refused():
    def step(x):
        return jax.lax.psum(x.sum(), "replica") if len(x) > 2 else jax.lax.pmax(x.sum(), "replica")

    line = step.__code__.co_firstlineno + 1
    assert refusal_of(step) == (
        f"{BEGIN}replicas with different numbers of rows run different collectives: with 3 rows psum (line {line} of "
        f"test_step.py), with 2 rows pmax (line {line} of test_step.py){END}"
    )

    def step(x):
        return jax.lax.psum(x.sum(), "replica") if len(x) > 2 else x.sum()

    assert f"with 3 rows psum (line {step.__code__.co_firstlineno + 1} of test_step.py), with 2 rows no other" in (
        refusal_of(step)
    )


def test_a_collective_on_rows_is_refused():
    def step(x):
        return jax.lax.psum(x, "replica")

    assert refusal_of(step) == (
        f"{BEGIN}psum (line {step.__code__.co_firstlineno + 1} of test_step.py) joins values of the replicas that have "
        f"the shapes (3, 2) and (2, 2){END}"
    )


def test_a_loop_with_a_collective_and_own_numbers_of_steps_is_refused():
    def step(x):
        return jax.lax.fori_loop(0, len(x), lambda i, c: c + jax.lax.psum(x[0, 0], "replica"), 0.0)

    assert refusal_of(step) == (
        f"{BEGIN}the number of steps of scan (line {step.__code__.co_firstlineno + 1} of test_step.py), which has a "
        f"collective in it, may differ between them{END}"
    )

    def step(x):
        return jax.lax.while_loop(lambda c: c < x.sum(), lambda c: c + jax.lax.psum(x[0, 0], "replica"), 0.0)

    assert refusal_of(step) == (
        f"{BEGIN}the number of steps of while (line {step.__code__.co_firstlineno + 1} of test_step.py), which has a "
        f"collective in it, may differ between them{END}"
    )


def test_a_step_for_one_number_of_rows_is_refused():
    def step(x):
        return jnp.sum(x.reshape(3, 2))

    assert refusal_of(step) == (
        f"{BEGIN}it fails on a replica with 2 rows, where others have 3 (TypeError: cannot reshape array of shape "
        "(2, 2) (size 4) into shape (3, 2) (size 6)). Write it for any number of rows, or leave such a batch out: "
        "batch(rows, drop_remainder=True)"
    )

    def step(x):
        return x[0]

    assert refusal_of(step, ROWS[:1]) == (
        f"{BEGIN}it fails on a replica with 0 rows, where others have 1 (IndexError: index is out of bounds for axis 0 "
        "with size 0). Write it for any number of rows, or leave such a batch out: batch(rows, drop_remainder=True)"
    )


def test_results_of_another_form_are_refused():
    def step(x):
        return (x.sum(),) if len(x) > 2 else [x.sum()]

    assert refusal_of(step) == (
        f"{BEGIN}returns PyTreeDef((*,)) on a replica with 3 rows but PyTreeDef([*]) on another: return "
        "the same lists, tuples and dictionaries on all replicas"
    )

    def step(x):
        return x if len(x) > 2 else x.sum()

    assert refusal_of(step) == (
        f"{BEGIN}returns arrays of the shapes (3, 2) and () on its replicas: return arrays with the same number of axes"
    )


def test_a_state_that_depends_on_the_number_of_rows_is_refused():
    strategy = tpu.connect("virtual", cores=2)
    with strategy.scope():
        rows = keras.Variable(0.0)

    def step(x):
        rows.assign(float(len(x)))

    with pytest.raises(ReplicaError, match="returns a state that differs between its 2 replicas"):
        strategy.run(step, args=(next(iter(strategy.distribute_dataset([ROWS]))),))


def test_a_collective_in_a_derivative_is_refused():
    @jax.custom_vjp
    def doubled(x):
        return x * 2

    doubled.defvjp(lambda x: (x * 2, None), lambda _, slope: (jax.lax.psum(slope, "replica"),))

    def step(x):
        return tpu.value_and_grad(lambda weight: jnp.sum(doubled(weight) * x), jnp.float32(1))()

    assert (
        refusal_of(step) == f"{BEGIN}a function with a derivative of its own runs a collective in the derivative{END}"
    )


def test_dropout_and_constants_of_numpy_in_a_state():
    strategy = tpu.connect("virtual", cores=4)
    with strategy.scope():
        dropout = keras.layers.Dropout(0.5, seed=3)
        counts = keras.Variable(np.zeros(2, "float32"))
    batch = next(iter(strategy.distribute_dataset([np.ones((14, 3), "float32")])))

    def step(x):
        counts.assign(counts + np.array([1.0, 2.0], "float32"))
        return dropout(x, training=True)

    rows = strategy.run(step, args=(batch,)).values
    assert [len(part) for part in rows] == [4, 4, 4, 2]
    assert not np.array_equal(rows[0][:2], rows[1][:2])
    assert np.asarray(counts.value).tolist() == [1.0, 2.0]


def test_callbacks_and_derivatives_of_each_number_of_rows():
    def called(x):
        rows = len(x)
        shape = jax.ShapeDtypeStruct((), "float32")
        return jax.jit(lambda w: jax.pure_callback(lambda a: np.float32(a * rows), shape, w))(jnp.float32(3))

    assert run(called) == [9.0, 6.0]

    @functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
    def scaled(weight, rows):
        return weight

    scaled.defvjp(lambda weight, rows: (weight, None), lambda rows, _, slope: (slope * rows,))
    slopes = run(lambda x: tpu.value_and_grad(lambda w: jnp.sum(scaled(w, len(x)) * x), jnp.float32(1))()[1])
    assert slopes == [3 * 15.0 + 2 * 30.0] * 2


def test_a_loss_with_other_captures_on_each_replica():
    def step(x):
        loss = lambda w: 0.0 * w if len(x) == 0 else jnp.sum((w - x) ** 2) / 5  # noqa: E731
        return tpu.value_and_grad(loss, jnp.float32(3))()[1]

    rows = np.arange(5.0, dtype="float32")
    expected = float(np.sum(2 * (3 - rows)) / 5)
    np.testing.assert_allclose(run(step, rows, cores=4), [expected] * 4, rtol=1e-6)


def test_an_index_in_a_function_with_its_own_derivative_is_refused():
    @jax.custom_vjp
    def noisy(x):
        return x + jax.lax.axis_index("replica")

    noisy.defvjp(lambda x: (noisy(x), None), lambda _, slope: (slope,))

    def step(x):
        return tpu.value_and_grad(lambda w: jnp.sum(noisy(w * x)), jnp.float32(1))()

    text = "a function with a derivative of its own has a collective in it, or reads the replica's index"
    assert refusal_of(step) == f"{BEGIN}{text}{END}"


def test_merge_call_and_gradients_of_gathered_rows():
    context = tpu.get_replica_context
    total = lambda x: context().merge_call(lambda s, v: s.reduce("SUM", v, axis=0), args=(x[:, 0],))  # noqa: E731
    assert run(total) == [20.0, 20.0]
    slope = jax.grad(lambda c, x: jnp.sum(context().all_gather(x * c, 0)))
    assert run(lambda x: slope(1.0, x)) == [2 * 15.0, 2 * 30.0]
    assert run(lambda x: jax.vmap(lambda c: jnp.sum(context().all_gather(x * c, 0)))(jnp.arange(2.0))) == [[0, 45]] * 2


def test_python_that_checks_a_sum_and_keys_of_each_row():
    def step(x):
        rows = jax.lax.psum(len(x), "replica")
        assert rows == 5
        return jax.random.key_data(jax.random.split(jax.random.key(0), len(x))).shape[0] + jnp.zeros(rows)[0]

    assert run(step) == [3.0, 2.0]
    strategy = tpu.connect("virtual", cores=2)
    batch = next(iter(strategy.distribute_dataset([ROWS])))
    keys = strategy.run(lambda x: jax.random.split(jax.random.key(0), len(x)), args=(batch,))
    assert [part.shape for part in keys.values] == [(3,), (2,)]


def test_numbers_over_groups_are_refused():
    def step(x):
        return jax.lax.psum(len(x), "replica", axis_index_groups=[[0, 1], [2, 3]])

    assert refusal_of(step, ROWS, cores=4) == (
        "a Python number is summed over groups of replicas or over several axes, on a batch that does not fill all "
        "replicas. Sum an array, jnp.asarray(number), or use tpu.cross_replica_sum(number, groups)"
    )


def test_a_variable_aggregates_a_number_of_rows():
    strategy = tpu.connect("virtual", cores=2)
    with strategy.scope():
        mean, first = keras.Variable(0.0, aggregation="mean"), keras.Variable(0.0, aggregation="only_first_replica")

    def step(x):
        mean.assign(float(len(x)))
        first.assign(float(len(x)))

    strategy.run(step, args=(next(iter(strategy.distribute_dataset([ROWS]))),))
    assert (float(mean.value), float(first.value)) == (2.5, 3.0)
