"""What a replica knows of itself, and what the replicas do together."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError, SettingError


@pytest.fixture(params=[("virtual", 8), ("twin", 3), ("virtual", 1)], ids=str)
def system(request):
    return tpu.connect(request.param[0], cores=request.param[1])


def parts(strategy, value):
    return [np.asarray(part).tolist() for part in strategy.experimental_local_results(value)]


def test_numbers_sums_and_means(system):
    n = system.num_replicas_in_sync

    def step():
        context = tpu.get_replica_context()
        index = context.replica_id_in_sync_group
        assert context.num_replicas_in_sync == n
        return index, context.all_reduce("SUM", index), context.all_reduce(tpu.ReduceOp.MEAN, {"x": index})

    index, total, mean = system.run(step)
    assert parts(system, index) == list(range(n))
    assert parts(system, total) == [n * (n - 1) // 2] * n
    assert parts(system, mean["x"]) == [(n - 1) / 2] * n


def test_gathering(system):
    n = system.num_replicas_in_sync

    def step():
        context = tpu.get_replica_context()
        mine = jnp.full((1, 2), context.replica_id_in_sync_group)
        return context.all_gather(mine, axis=0), context.all_gather(mine, axis=-1)

    rows, columns = system.run(step)
    assert parts(system, rows) == [[[i, i] for i in range(n)]] * n
    assert parts(system, columns) == [[[i for i in range(n) for _ in range(2)]]] * n


def test_the_gradient_of_a_sum_is_a_sum(system):
    n = system.num_replicas_in_sync

    def step():
        context = tpu.get_replica_context()
        scale = context.replica_id_in_sync_group + 1.0
        return jax.grad(lambda x: scale * context.all_reduce("SUM", x))(2.0)

    assert parts(system, system.run(step)) == [n * (n + 1) / 2] * n


def test_merging(system):
    n = system.num_replicas_in_sync
    with system.scope():
        highest = keras.Variable(0.0)

    def merge(strategy, value, factor):
        assert tpu.get_replica_context() is None
        total = strategy.reduce("SUM", value) * factor
        highest.assign(total)
        return total, value

    def step():
        context = tpu.get_replica_context()
        mine = context.replica_id_in_sync_group + 1.0
        total, own = context.merge_call(merge, args=(mine,), kwargs={"factor": 2.0})
        return total, own

    total, own = system.run(step)
    assert parts(system, total) == [n * (n + 1.0)] * n
    assert parts(system, own) == [i + 1.0 for i in range(n)]
    assert float(highest.value) == n * (n + 1.0)


def test_where_there_is_no_replica():
    default = tpu.get_replica_context()
    assert (default.num_replicas_in_sync, default.replica_id_in_sync_group) == (1, 0)
    assert default.all_reduce("MEAN", 3.0) == 3.0
    assert default.all_gather(np.ones((2, 3)), axis=1).shape == (2, 3)
    assert default.merge_call(lambda strategy, x: x + 1, args=(1,)) == 2
    with tpu.connect("virtual", cores=2).scope():
        assert tpu.get_replica_context() is None


def test_what_is_refused(system):
    with pytest.raises(SettingError) as error:
        system.run(lambda: tpu.get_replica_context().all_reduce("MAX", 1.0))
    assert str(error.value) == 'reduce_op must be "SUM" or "MEAN", not \'MAX\''
    with pytest.raises(SettingError) as error:
        system.run(lambda: tpu.get_replica_context().all_gather(1.0, axis=0))
    assert str(error.value) == (
        "all_gather was given axis=0, and this replica's value has the shape (): the axis counts the axes of one "
        "value, from 0; for a number type value[None]"
    )


def test_the_sum_of_a_variable_is_that_of_its_values():
    strategy, weight = tpu.connect("virtual", cores=2), keras.Variable(2.0)
    sums = strategy.run(lambda: tpu.get_replica_context().all_reduce("SUM", [weight, 1.0]))
    assert [float(total.values[0]) for total in sums] == [4.0, 2.0]


def test_the_rows_of_each_batch_are_gathered_without_pads():
    strategy = tpu.connect("virtual", cores=4)
    data = [np.arange(8), np.arange(8, 13), np.arange(13, 18), np.arange(18, 19)]

    def step(rows):
        context = tpu.get_replica_context()
        return context.all_gather(rows, axis=0), context.all_gather(rows.max()[None], axis=0)

    before, found = strategy.compilations, []
    for batch in strategy.distribute_dataset(data):
        rows, most = strategy.run(step, args=(batch,))
        found.append(parts(strategy, rows)[3])
        assert np.shape(most.values[0]) == (4,)
    assert found == [rows.tolist() for rows in data]
    assert strategy.compilations == before + 3


def test_rows_are_gathered_in_a_loop_of_many_steps():
    strategy = tpu.connect("virtual", cores=2)
    made = strategy.distribute_dataset([np.ones((4, 2)), np.ones((3, 2))])
    rows = strategy.run_steps(lambda rows: tpu.get_replica_context().all_gather(rows, 0), iter(made), 2)
    assert rows.values[1].shape == (3, 2)


def test_an_axis_of_one_length_is_gathered_only_where_the_others_agree():
    strategy = tpu.connect("virtual", cores=2)
    batch = next(iter(strategy.distribute_dataset([np.ones((3, 2))])))

    def step(rows):
        return tpu.get_replica_context().all_gather(rows, -1)

    with pytest.raises(ReplicaError) as error:
        strategy.run(step, args=(batch,))
    line = step.__code__.co_firstlineno + 1
    assert str(error.value) == (
        f"step was given a batch that does not fill all replicas, and all_gather (line {line} of "
        "test_replica_context.py) joins values of the replicas that have the shapes (2, 2) and (1, 2). Let all "
        "replicas run the same collectives, on values of the same shapes, or leave such a batch out: "
        "batch(rows, drop_remainder=True)"
    )
