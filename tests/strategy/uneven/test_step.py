"""Steps on batches that do not fill the replicas: what the real rows alone give, or an error."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anytpu as tpu  # isort: skip
import keras
from padded_steps import LINKS, REFUSED, STEPS, chained

from anytpu.errors import ReplicaError

pytestmark = pytest.mark.usefixtures("quick_compilation")


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


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_no_mask_mends_is_refused(name):
    with pytest.raises(ReplicaError, match="does not fill all replicas"):
        check(REFUSED[name], count=10, cores=3)


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
def test_random_steps_are_right_or_refused(names, cores, count, seed):
    check_random(names, cores, count, seed)


@pytest.mark.battery
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(**RANDOM_STEPS)
def test_more_random_steps_are_right_or_refused(names, cores, count, seed):
    check_random(names, cores, count, seed)


def check_random(names: list[str], cores: int, count: int, seed: int) -> None:
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


def refusal_of(step: Any, count: int) -> str:
    """Return the error of a step on four cores."""
    strategy = tpu.connect("virtual", cores=4)
    batch = next(iter(strategy.distribute_dataset([np.arange(float(count), dtype="float32")])))
    with pytest.raises(ReplicaError) as error:
        strategy.run(step, args=(batch,))
    return str(error.value)


def test_an_index_into_repeated_rows_is_refused():
    step = lambda x: jnp.argmax(jnp.concatenate([x, x]))  # noqa: E731
    assert refusal_of(step, 18) == (
        "<lambda> was given a batch that does not fill all replicas, so its last rows are pads, and argmax (line "
        f"{step.__code__.co_firstlineno} of test_programs.py) returns an index into an axis that repeats the rows: "
        "give the pads a value first, for example with jnp.where(tpu.row_mask(x)[:, None], x, 0); or leave such a "
        "batch out, with batch(rows, drop_remainder=True)"
    )


def test_code_that_hangs_on_the_number_of_rows_is_refused():
    step = lambda x: jnp.sum(x) if len(x) > 4 else -jnp.sum(x)  # noqa: E731
    line = step.__code__.co_firstlineno
    assert refusal_of(step, 18) == (
        "<lambda> was given a batch that does not fill all replicas, so its last rows are pads, and neg (line "
        f"{line} of test_programs.py) is an operation of the step for 3 rows and not of the step for 5 rows: write the "
        "step so that it has the same operations for any number of rows; or leave such a batch out, with "
        "batch(rows, drop_remainder=True)"
    )
    assert "is an operation of the step for 5 rows and not of the step for 11 rows" in refusal_of(
        lambda x: x if len(x) > 9 else jnp.sin(x), 18
    )
    assert "mul (line " in (text := refusal_of(lambda x: jnp.sum(x * np.arange(len(x), 0.0, -1)), 18))
    assert "takes other operands in the step for 11 rows than in the step for 5 rows: write the step" in text


def test_a_result_that_hangs_on_the_number_of_rows_is_refused():
    assert refusal_of(lambda x: len(x) // 2, 18) == (
        "<lambda> was given a batch that does not fill all replicas, so its last rows are pads, and the step takes a "
        "number that depends on the number of rows and is not a multiple of it: count the real rows with "
        "jnp.sum(tpu.row_mask(x)), or take the mean with tpu.compute_average_loss(losses); or leave such a batch out, "
        "with batch(rows, drop_remainder=True)"
    )


def test_a_step_for_one_number_of_rows_says_why():
    step = lambda x: jnp.sum(x.reshape(3, 1))  # noqa: E731
    line = step.__code__.co_firstlineno
    assert refusal_of(step, 10) == (
        "<lambda> was given a batch that does not fill all replicas, so its last rows are pads, and reduce_sum (line "
        f"{line} of test_programs.py) reduces the rows. The step cannot be traced for 7 rows (TypeError: cannot "
        "reshape array of shape (7,) (size 7) into shape (3, 1) (size 3)), so a number of rows in it cannot be "
        "distinguished from other numbers: give the pads a value first, for example with "
        "jnp.where(tpu.row_mask(x)[:, None], x, 0); or leave such a batch out, with batch(rows, drop_remainder=True)"
    )
