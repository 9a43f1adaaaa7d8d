from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError, SettingError, StrategyError

MATMUL = np.array([[22.0, 28.0], [49.0, 64.0]], "float32")


@pytest.fixture
def eight():
    return tpu.connect("virtual", cores=8)


def test_reduce_of_the_guides_product(eight):
    z = eight.run(lambda: MATMUL)
    assert eight.reduce("SUM", z, axis=None).tolist() == [[176, 224], [392, 512]]
    assert eight.reduce(tpu.ReduceOp.MEAN, z, axis=0).tolist() == [35.5, 46]
    assert eight.reduce("mean", z, axis=None).tolist() == MATMUL.tolist()
    assert eight.reduce("Sum", z, axis=-1).tolist() == [400, 904]
    assert eight.reduce("SUM", z).dtype == np.float32


def test_reduce_over_several_axes(eight):
    value = tpu.PerReplica([np.arange(6.0).reshape(2, 3) + replica for replica in range(8)])
    stack = np.stack(value.values)
    for axis, axes in {(0, 1): (0, 1, 2), (1, 0): (0, 1, 2), (0,): (0, 1), (-1,): (0, 2), (): (0,)}.items():
        for given in (axis, list(axis)):
            assert np.array_equal(eight.reduce("SUM", value, axis=given), stack.sum(axes))
            assert np.allclose(eight.reduce("MEAN", value, axis=given), stack.mean(axes))
    for axis, text in {
        (0, 0): "reduce was given axis=(0, 0), which names an axis of the shape (2, 3) twice",
        (0, 1.5): "axis must be an integer, a tuple of integers such as (0, 1), or None, not (0, 1.5)",
        "0": "axis must be an integer, a tuple of integers such as (0, 1), or None, not '0'",
        True: "axis must be an integer, a tuple of integers such as (0, 1), or None, not True",
    }.items():
        with pytest.raises(SettingError) as caught:
            eight.reduce("SUM", value, axis=axis)
        assert str(caught.value) == text


def test_reduce_of_a_tree(eight):
    out = eight.run(lambda: {"a": 1.0, "b": [2, None]})
    assert eight.reduce("SUM", out, axis=None) == {"a": 8.0, "b": [16, None]}


def test_the_mean_over_rows_counts_every_row_once(strategy):
    value = tpu.PerReplica([np.array([1.0, 2.0, 3.0]), np.array([10.0])])
    assert strategy.reduce("MEAN", value, axis=0) == 4.0
    assert strategy.reduce("SUM", value, axis=0) == 16.0


def test_the_sum_of_truths_is_a_count(strategy):
    right = tpu.PerReplica([np.array([True, True]), np.array([True, False])])
    assert strategy.reduce("SUM", right, axis=0) == 3
    assert strategy.reduce("SUM", right, axis=None).tolist() == [2, 1]
    assert strategy.reduce("MEAN", right, axis=0) == 0.75


def test_a_plain_value_is_that_of_every_replica(eight):
    assert eight.reduce("MEAN", {"a": np.float32(3)}, axis=None) == {"a": 3}
    assert eight.reduce("MEAN", np.array([1.0, 3.0]), axis=0) == 2
    assert eight.reduce("SUM", np.array([1.0, 3.0]), axis=0) == 32
    assert eight.reduce("SUM", 0.0, axis=None) == 0
    one = tpu.connect("virtual", cores=1)
    assert one.reduce("SUM", one.run(lambda: 3.0), axis=None) == 3


@pytest.mark.parametrize(("value", "what"), [(3.0, "3.0"), (np.ones((2, 3)), "an array of shape (2, 3)")])
def test_the_sum_of_a_plain_value_is_refused(eight, value, what):
    with pytest.raises(ReplicaError) as caught:
        eight.reduce("SUM", [value], axis=None)
    assert str(caught.value) == (
        f'strategy.reduce("SUM", ...) was given {what}, one value for all 8 replicas and not one for each: pass what '
        'strategy.run returned. For the value itself type strategy.reduce("MEAN", value, axis=None); for its sum over '
        "the replicas, value * strategy.num_replicas_in_sync"
    )


def test_the_sum_of_a_plain_value_is_refused_while_merging(eight):
    def step():
        return tpu.get_replica_context().merge_call(lambda strategy: strategy.reduce("SUM", jnp.float32(1)))

    with pytest.raises(ReplicaError, match="one value for all 8 replicas and not one for each"):
        eight.run(step)


def test_gather(eight, strategy):
    z = eight.run(lambda: MATMUL)
    assert eight.gather(z, axis=0).shape == (16, 2)
    assert eight.gather(z, axis=-1).shape == (2, 16)
    assert eight.gather(z, axis=0)[:4].tolist() == [*MATMUL.tolist(), *MATMUL.tolist()]
    assert strategy.gather(tpu.PerReplica([np.zeros((1, 2)), np.ones((3, 2))]), axis=0).shape == (4, 2)
    assert strategy.gather(MATMUL, axis=0) is MATMUL


@pytest.mark.parametrize("bad", ["MAX", None, 3])
def test_an_unknown_operation(strategy, bad):
    with pytest.raises(SettingError) as caught:
        strategy.reduce(bad, 1.0, axis=None)
    assert str(caught.value) == f'reduce_op must be "SUM" or "MEAN", not {bad!r}'


def test_an_axis_that_is_not_there(strategy):
    with pytest.raises(SettingError) as caught:
        strategy.reduce("SUM", tpu.PerReplica([1.0, 2.0]), axis=0)
    assert str(caught.value) == (
        "reduce was given axis=0, and a replica's value has the shape (): the axis counts the axes of one value, from "
        "0; "
        'strategy.reduce("SUM", value, axis=None) takes values of any shape'
    )
    with pytest.raises(SettingError) as caught:
        strategy.gather(tpu.PerReplica([MATMUL, MATMUL]), axis=2)
    assert str(caught.value) == (
        "gather was given axis=2, and a replica's value has the shape (2, 2): the axis counts the axes of one value, "
        "from 0; "
        'strategy.reduce("SUM", value, axis=None) takes values of any shape'
    )


def test_values_of_different_shapes(strategy):
    with pytest.raises(ReplicaError) as caught:
        strategy.reduce("SUM", tpu.PerReplica([np.zeros(2), np.zeros(3)]), axis=None)
    assert str(caught.value) == (
        "the values of this PerReplica have different shapes, (2,), (3,): every replica runs the same compiled step, "
        "so give each a value of the same shape. Where only the rows differ, "
        "joined = strategy.gather(value, axis=0) is one array of all rows, and "
        "next(iter(strategy.distribute_dataset([joined]))) splits it evenly"
    )
    with pytest.raises(ReplicaError) as caught:
        strategy.gather(tpu.PerReplica([np.zeros((1, 2)), np.zeros((1, 3))]), axis=0)
    assert str(caught.value) == (
        "the values of this PerReplica have shapes (1, 2), (1, 3), and gather(axis=0) needs them to be equal in every "
        "axis but 0: look at the parts with value.values"
    )


def test_not_inside_a_replica(strategy):
    calls = {
        "reduce": (lambda: strategy.reduce("SUM", 1.0), "sum with jax.lax.psum(value, 'replica')"),
        "gather": (lambda: strategy.gather(1.0, 0), "use jax.lax.all_gather(value, 'replica', tiled=True)"),
        "run": (lambda: strategy.run(lambda: 1.0), "call the function itself"),
    }
    for name, (call, instead) in calls.items():
        for outer in (strategy, tpu.get_strategy()):
            with pytest.raises(StrategyError) as caught:
                outer.run(lambda call=call: call())
            assert str(caught.value) == (
                f"strategy.{name} joins the values of all replicas, and this is inside one of them, in a function that "
                f"strategy.run runs. Call it outside, on the result of run; inside, {instead}"
            )
